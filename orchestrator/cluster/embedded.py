"""Starts a private Ray on this machine, which by default listens on loopback only, and watches its
processes from outside."""

from __future__ import annotations

import fcntl
import os
import secrets
import select
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import ray
from ray.exceptions import RayError
from ray.tune import TuneError

from orchestrator.cluster import ray_internals
from orchestrator.files.cores import cores
from orchestrator.records import BadInput, SweepFailed, cut

# psutil comes with Ray, on a path that `import ray` adds.
import psutil  # isort: skip

LOOPBACK = "127.0.0.1"

OBJECT_STORE_BYTES = 256 * 2**20
"""Size of Ray's object store in bytes, enough for the few small messages of a sweep on one
machine."""

DASHBOARD = "ORCHESTRATE_DASHBOARD"
"""Environment variable that turns off Ray's dashboard if it is 0. The dashboard has ten processes
and takes a sixth of the processor time of a short sweep."""

LOOK_SECONDS = 1.0
"""Seconds between two checks of Ray's processes."""

ENDING_SECONDS = 5.0
"""Seconds that a part of Ray may take to end after its loss has caused an error in this process."""

NEW_SECONDS = 60

LONGEST_PARENT = 10
"""Largest number of characters in the path of the folder in which Ray's folder is made. Ray's
sockets lie deep inside of it, and the path of a socket may have at most 107 characters."""

VITAL = {"gcs_server": "control store", "raylet": "raylet"}
"""Ray's name of a process -> its name in our messages. Ray can't go on without these processes."""

AGENTS = {"ray::DashboardAgent": "dashboard agent", "ray::RuntimeEnvAgent": "runtime agent"}
"""Title of a process -> its name in our messages. The raylet ends itself if it loses one of
these."""


@contextmanager
def embedded(
    died: Callable[[str], None], *, host: str = LOOPBACK, cpus: int | None = None
) -> Iterator[ray_internals.Context]:
    """Starts Ray for the `with` block. If Ray can't go on, `died` is called with the reason on a
    separate thread, after all of Ray's processes have ended. Other machines may join at `host`."""
    if not ray_internals.is_token_auth_enabled():
        raise BadInput(
            "Ray is started on this machine only with token authentication, since it would obey "
            "every user of the machine otherwise, but token authentication is off. Either "
            "RAY_AUTH_MODE turns it off: unset it. Or ray was imported before "
            "orchestrator.cluster, which turns it on: import that first."
        )
    _keep_token_private()
    with private_folder() as folder:
        try:
            context = _start(folder, host, cpus or cores())
            with _watched(died):
                yield context
        finally:
            ray.shutdown()


def _start(folder: Path, host: str, cpus: int) -> ray_internals.Context:
    dashboard = os.environ.get(DASHBOARD) != "0"
    # A signal to the group of this process, sent by a terminal or by `timeout`, then reaches only
    # this process, which acts on it.
    apart = partial(ray_internals.ConsolePopen, process_group=0)
    try:
        with ray_internals.starting_with(apart, dashboard=dashboard), undisturbed():
            return ray.init(
                address="local",
                num_cpus=cpus,
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=dashboard,
                dashboard_host=LOOPBACK,
                log_to_driver=False,
                configure_logging=False,
                # Ray makes this folder accessible to all users, but only this user can enter its
                # parent.
                _temp_dir=str(folder / "r"),
                _node_ip_address=host,
            )
    except Exception as error:  # of many kinds; that of the dashboard begins with an empty line
        reason = cut(str(error).partition("\n")[0], 200) or "its dashboard did not come up."
        raise SweepFailed(
            f"Ray did not start on this machine: {reason} Try again when less else is running, "
            f"without Ray's dashboard ({DASHBOARD}=0), or without Ray (--no-ray)."
        ) from error


@contextmanager
def undisturbed() -> Iterator[None]:
    """Processes that are started in the `with` block don't get SIGUSR1, by which queues may tell
    every process of a job that the time is nearly up. It would end them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _keep_token_private() -> None:
    """Makes Ray create a token if there is none. Lets only this user read it, since Ray would let
    all users read it. Keeps it in memory if the home folder can't be written."""
    before = os.umask(0o077)
    try:
        ray_internals.ensure_token({}, create_token_if_missing=True)
    except OSError:  # as in many containers
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    finally:
        os.umask(before)
    with suppress(OSError):
        (Path.home() / ".ray" / "auth_token").chmod(0o600)


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder for files of Ray or Tune that only this user can enter. Folders that killed
    processes left are removed; they are known by their locks, which no process holds."""
    parent = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    if len(parent) > LONGEST_PARENT:
        parent = "/tmp"  # noqa: S108 - the folder that is made there is private
    for left in Path(parent).glob("orchestrate-ray-*"):
        with suppress(OSError):
            # A folder that was made a moment ago may be about to be locked, so it stays.
            if time.time() - left.stat().st_mtime > NEW_SECONDS:
                with _locked(left):
                    shutil.rmtree(left, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(
            prefix="orchestrate-ray-", dir=parent, ignore_cleanup_errors=True
        ) as folder,
        _locked(Path(folder)),
    ):
        yield Path(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Locks the folder during the `with` block; the lock also ends with this process. Raises
    OSError if another process has the lock."""
    descriptor = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _watched(died: Callable[[str], None]) -> Iterator[None]:
    """Watches Ray's processes on a thread during the `with` block, then shuts Ray down. If one of
    the processes is gone, Ray itself would wait for ever, or end this process without a message."""
    watch, ended = _Watch(), threading.Event()

    def act(reason: str) -> None:
        watch.kill_all()
        died(reason)

    def look() -> None:
        while not ended.is_set():
            reason = watch.wait(LOOK_SECONDS) or watch.look()
            if reason is not None and not ended.is_set():
                act(reason)
                return

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    except (RayError, TuneError):
        # An error of a lost raylet may arrive here before the raylet ends, so wait for that.
        if (reason := watch.wait(ENDING_SECONDS)) is not None:
            act(reason)
        raise
    finally:
        ended.set()  # The thread may notice this a second later; nobody waits for it.
        ray.shutdown()


class _Watch:
    """The processes of Ray on this machine, observed through the operating system."""

    def __init__(self) -> None:
        self._all = ray_internals.own_processes()
        self._names = {
            psutil.Process(self._all[kind][0].process.pid): name for kind, name in VITAL.items()
        }
        """The processes that Ray needs; agents are added when they appear."""
        self._raylet = next(process for process, name in self._names.items() if name == "raylet")
        self._children: set[psutil.Process] = set()
        self._named: dict[int, str] = {}
        """Descriptor of a process whose end is waited for -> its name."""
        for process in self._names:
            self._notice(process)

    def wait(self, seconds: float) -> str | None:
        """Waits for so many seconds, or until a process ends that Ray needs; then returns why Ray
        can't go on. A raylet that has lost an agent ends a moment later, and Ray would then end
        this process. So nothing is read here, because reading would let other threads run."""
        ends = select.poll()  # created per call, because two threads may wait
        for descriptor in [*self._named]:
            ends.register(descriptor, select.POLLIN)
        for descriptor, _ in ends.poll(1000 * seconds):
            return f"Ray's {self._named[descriptor]} has died."
        return None

    def look(self) -> str | None:
        """The reason why Ray can't go on, or None."""
        for process, name in self._names.items():
            if not _is_there(process):  # for systems without pidfd_open
                return f"Ray's {name} has died."
        with suppress(psutil.Error):
            self._children |= set(self._raylet.children())
        self._children = {child for child in self._children if _is_there(child)}
        for child in self._children - self._names.keys():
            with suppress(psutil.Error):
                if (agent := AGENTS.get(" ".join(child.cmdline()).strip())) is not None:
                    self._names[child] = agent
                    self._notice(child)
        return None

    def _notice(self, process: psutil.Process) -> None:
        with suppress(OSError, AttributeError):  # only Linux has pidfd_open
            descriptor = os.pidfd_open(process.pid)
            self._named[descriptor] = self._names[process]

    def kill_all(self) -> None:
        pids = [info.process.pid for infos in self._all.values() for info in infos]
        for pid in [*pids, *(child.pid for child in self._children)]:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _is_there(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
