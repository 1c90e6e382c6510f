"""A Ray of our own on this machine: private, on loopback only, watched from outside."""

from __future__ import annotations

import fcntl
import logging
import os
import select
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.tune import TuneError

from orchestrator.cluster import ray_internals
from orchestrator.records import BadInput

# Ray brings it along, on a path that `import ray` adds.
import psutil  # isort: skip

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 256 * 2**20
"""Enough for the few small messages that a sweep on one machine passes around."""

DASHBOARD = "ORCHESTRATE_DASHBOARD"
"""Set to 0, this variable leaves out Ray's dashboard: ten processes, and a sixth of the processor
time that a short sweep takes."""

LOOK_SECONDS = 1.0
"""Between two looks at Ray's processes."""

STOPPED_SECONDS = 15.0
"""A process that is stopped (SIGSTOP) for so long counts as lost; not one that a debugger holds."""

ENDING_SECONDS = 5.0
"""So long a part of Ray may take to end, once its loss has made something fail here."""

NEW_SECONDS = 60

LONGEST_PARENT = 10
"""Characters of the folder in which ours is made. Ray's sockets lie deep inside of it, and the path
of a socket has 107 at most."""

VITAL = {"gcs_server": "control store", "raylet": "raylet"}
"""Ray's name of a process -> ours. Nothing can go on without these."""

AGENTS = {"ray::DashboardAgent": "dashboard agent", "ray::RuntimeEnvAgent": "runtime agent"}
"""The raylet ends itself when it has lost one of them."""


@contextmanager
def embedded(died: Callable[[str], None]) -> Iterator[ray_internals.Context]:
    """Starts Ray. `died` is called, on a thread of its own, with the reason why nothing can go on
    any more; by then nothing is left of Ray's processes."""
    if not ray_internals.is_token_auth_enabled():
        raise BadInput(
            "A Ray started here would obey every user of this machine, so it is started with token "
            "authentication only, which is off: RAY_AUTH_MODE says so, or ray was imported before "
            "orchestrator.cluster. Unset the one, or import the other first."
        )
    _keep_token_private()
    with _private_folder() as folder:
        try:
            context = _start(folder)
            with _watched(died):
                yield context
        finally:
            ray.shutdown()


def _start(folder: Path) -> ray_internals.Context:
    with ray_internals.starting_with(_Apart):
        return ray.init(
            address="local",
            num_cpus=len(os.sched_getaffinity(0)),
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=os.environ.get(DASHBOARD) != "0",
            dashboard_host="127.0.0.1",
            log_to_driver=False,
            configure_logging=False,
            # Ray opens this folder to everyone, but nobody else can enter the one above it.
            _temp_dir=str(folder / "r"),
            _node_ip_address="127.0.0.1",
        )


def _keep_token_private() -> None:
    """Has Ray make a token if there is none, and lets only us read it: Ray lets everyone."""
    before = os.umask(0o077)
    try:
        ray_internals.ensure_token({}, create_token_if_missing=True)
    finally:
        os.umask(before)
    file = Path.home() / ".ray" / "auth_token"
    with suppress(OSError):
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            file.chmod(0o600)


@contextmanager
def _private_folder() -> Iterator[Path]:
    """For Ray's logs and sockets; only this user can enter it. Those of processes that were killed
    are removed: nobody holds their locks."""
    parent = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    if len(parent) > LONGEST_PARENT:
        parent = "/tmp"  # noqa: S108 - the folder that is made there is private
    for left in Path(parent).glob("orchestrate-ray-*"):
        with suppress(OSError):
            # Not one that was made just now, and is about to be locked.
            if time.time() - left.stat().st_mtime > NEW_SECONDS:
                with _locked(left):
                    shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix="orchestrate-ray-", dir=parent))
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError where another process has the lock, which goes with its holder."""
    descriptor = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


class _Apart(ray_internals.ConsolePopen):
    """One of Ray's processes, in a process group of its own: an interrupt or an end that the whole
    group of this process is told (by a terminal, by `timeout`) is for this process to act upon."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, process_group=0, **options)


@contextmanager
def _watched(died: Callable[[str], None]) -> Iterator[None]:
    """Within, a thread looks at Ray's processes. Where one of them is gone, Ray itself waits for
    ever, or ends this process without a word. Afterwards, Ray is shut down."""
    watch, over = _Watch(), threading.Event()

    def act(reason: str) -> None:
        watch.kill_all()
        died(reason)

    def look() -> None:
        while not over.is_set():
            reason = watch.wait(LOOK_SECONDS) or watch.look()
            if reason is not None and not over.is_set():
                act(reason)
                return

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    except (RayError, TuneError):
        # A raylet tells that it is lost before it ends.
        if (reason := watch.wait(ENDING_SECONDS)) is not None:
            act(reason)
        raise
    finally:
        over.set()  # The thread may only see it a second later, which nobody waits for.
        _shut_down(watch)


def _shut_down(watch: _Watch) -> None:
    """Ends Ray, which would wait for ever for a process of its own that is stopped."""
    down = threading.Event()

    def wake() -> None:
        while not down.is_set():
            watch.wake()
            down.wait(LOOK_SECONDS)

    threading.Thread(target=wake, daemon=True).start()
    try:
        ray.shutdown()
    finally:
        down.set()


class _Watch:
    """Ray's processes on this machine, as the system sees them."""

    def __init__(self) -> None:
        self._all = ray_internals.own_processes()
        self._names = {
            psutil.Process(self._all[kind][0].process.pid): name for kind, name in VITAL.items()
        }
        """Of those that can't be done without: agents are added as they are seen."""
        self._raylet = next(process for process, name in self._names.items() if name == "raylet")
        self._children: set[psutil.Process] = set()
        self._stopped_since: dict[psutil.Process, float] = {}
        self._named: dict[int, str] = {}
        """Those whose end is waited for, by their descriptors."""
        for process in self._names:
            self._notice(process)

    def wait(self, seconds: float) -> str | None:
        """Waits for so long, or until one of those ends that can't be done without; then returns
        why Ray can't go on. A raylet that has lost an agent ends within a moment, and this process
        with it if it is left to Ray. So nothing is read here: that would let other threads run."""
        ends = select.poll()  # one of its own: two threads may wait
        for descriptor in [*self._named]:
            ends.register(descriptor, select.POLLIN)
        for descriptor, _ in ends.poll(1000 * seconds):
            return f"Ray's {self._named[descriptor]} has died."
        return None

    def look(self) -> str | None:
        """Why Ray can't go on, if it can't. Ends workers that have been stopped for too long."""
        for process, name in self._names.items():
            if not _is_there(process):  # where the system has nothing to wait with
                return f"Ray's {name} has died."
        with suppress(psutil.Error):
            self._children |= set(self._raylet.children())
        self._children = {child for child in self._children if _is_there(child)}
        for child in self._children - self._names.keys():
            if (agent := AGENTS.get(_title(child))) is not None:
                self._names[child] = agent
                self._notice(child)
        for process in self._stopped_for_long(self._names.keys() | self._children):
            if process in self._names:
                name = self._names[process]
                return f"Ray's {name} was stopped (SIGSTOP) for {STOPPED_SECONDS:g} s."
            logger.warning("%s was stopped for %g s and is ended", process, STOPPED_SECONDS)
            with suppress(psutil.Error):
                process.kill()
        return None

    def wake(self) -> None:
        """Lets processes that are stopped go on."""
        for process in [*self._names, *self._children]:
            if _status(process) == psutil.STATUS_STOPPED:
                with suppress(psutil.Error):
                    process.resume()

    def _notice(self, process: psutil.Process) -> None:
        with suppress(OSError, AttributeError):  # Linux has that
            descriptor = os.pidfd_open(process.pid)
            self._named[descriptor] = self._names[process]

    def _stopped_for_long(self, processes: Iterable[psutil.Process]) -> list[psutil.Process]:
        now = time.monotonic()
        stopped = [process for process in processes if _status(process) == psutil.STATUS_STOPPED]
        self._stopped_since = {p: self._stopped_since.get(p, now) for p in stopped}
        return [p for p, since in self._stopped_since.items() if now - since > STOPPED_SECONDS]

    def kill_all(self) -> None:
        own = [info.process.pid for infos in self._all.values() for info in infos]
        for pid in [*own, *(child.pid for child in self._children)]:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _is_there(process: psutil.Process) -> bool:
    return _status(process) not in (None, psutil.STATUS_ZOMBIE)


def _status(process: psutil.Process) -> str | None:
    """None if it is gone."""
    try:
        return str(process.status()) if process.is_running() else None
    except psutil.Error:
        return None


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""
