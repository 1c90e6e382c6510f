"""Starts sweeps as users do, in a separate session, and watches their processes."""

import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml
from conftest import command, orchestrate, wait_for

from orchestrator.results import RunFiles

PATIENCE = 600
"""Seconds after which a condition won't come about any more, on however busy a machine."""

GONE_WITHIN = 400
"""Seconds in which Ray's processes must have ended after their driver: two agents look for the
control plane for a minute."""

AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")

SWEEP = {
    "name": "faults",
    "workloads": ["digits/mlp"],
    "goals": ["val/error < 0.04"],
    "recipes": ["sgd"],
    "batch_sizes": [32, 64, 128],
    "search": {"trials": 8},
    "budget": {"steps": 1000},
    # Trials that take a while, and end alike every time.
    "stop": {"dominated": False},
}
TRIALS = 24

PATIENT = """
import time
from contextlib import suppress
from pathlib import Path
import pyarrow.parquet as pq
from orchestrator.workloads.digits import DigitsMLP

class Patient(DigitsMLP):
    def loss(self, model, batch):
        with suppress(FileNotFoundError):  # nobody waits
            while len(batch[0]) > 2 and int(Path("after").read_text()) <= recorded():
                time.sleep(0.01)
            time.sleep(0.002)  # what has ended is recorded before many others end
        return super().loss(model, batch)

def recorded():
    files = Path("run").glob("trials/**/trials-*")
    return sum(pq.read_metadata(file).num_rows for file in files)
"""
"""See `waiting`. With one or two examples it is only looked at, before the sweep."""

TITLES = ("ray::Gang", "ray::_Peer")
"""Of processes that train."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """A running `orchestrate`. The processes of Ray that it starts belong to its session, and no
    others do."""

    process: subprocess.Popen[bytes]
    printed: Path
    said: Path

    def family(self) -> dict[int, str]:
        """Returns process id -> title of all processes of its session, also after its end."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                state, _, _, session, *_ = (
                    (folder / "stat").read_text().rpartition(")")[2].split(maxsplit=4)
                )
                if int(session) == self.process.pid and state not in "ZX":
                    title = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(folder.name)] = title.decode(errors="replace").strip()
        return found

    def ranks(self) -> list[int]:
        """Returns the processes that train."""
        family = sorted(self.family().items())
        return [pid for pid, title in family if title.startswith(TITLES)]

    def wait_until(self, condition: Callable[[], Any]) -> Any:
        """Waits until the condition holds, and returns its value."""
        return wait_for(condition, self.process, self.said)

    def end(self) -> tuple[int, str]:
        """Waits for the end, checks that no process is left, and returns the exit code and the
        output."""
        code = self.process.wait(timeout=PATIENCE)
        self.leaves_nothing()
        return code, self.said.read_text()

    def kill(self) -> None:
        """Kills the driver. Its workers end with it."""
        self.process.kill()
        self.process.wait()
        self.leaves_nothing(but=AGENTS)

    def leaves_nothing(self, but: tuple[str, ...] = ()) -> None:
        while left := {pid: title for pid, title in self.family().items() if title not in but}:
            with suppress(ProcessLookupError), os.fdopen(os.pidfd_open(min(left))) as one:
                assert select.select([one], [], [], GONE_WITHIN)[0], f"left behind: {left}"


@contextmanager
def driving(
    folder: Path,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
) -> Iterator[Driver]:
    if arguments[0] in {"sweep", "branch", "resume"} and "--no-ray" not in arguments:
        arguments = (*arguments, "--ray")  # which short sweeps don't start by themselves
    printed, said = folder / "printed.txt", folder / "said.txt"
    # Files, since Ray's processes would keep a pipe open.
    with printed.open("wb") as output, said.open("wb") as errors:
        process = subprocess.Popen(
            [*before, *command(*arguments)], cwd=folder, env=env,
            stdout=output, stderr=errors, start_new_session=True,
        )  # fmt: skip
    driver = Driver(process=process, printed=printed, said=said)
    try:
        yield driver
    finally:
        process.kill()
        process.wait()
        for pid in driver.family():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def waiting(folder: Path, after: int = 0) -> Iterator[None]:
    """Makes a sweep of `PATIENT` in `folder/run` stop training, within the context, once the given
    number of trials is recorded, however fast the machine is."""
    (folder / "first").write_text(str(after))
    (folder / "first").rename(folder / "after")  # never seen empty
    try:
        yield
    finally:
        (folder / "after").unlink(missing_ok=True)  # of several, each later one counts


@contextmanager
def standing_still(driver: Driver) -> Iterator[None]:
    os.kill(driver.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(driver.process.pid, signal.SIGCONT)


def describe(folder: Path, code: str = "", **changes: Any) -> Path:
    """Writes the sweep, with changes, and a user's own `code` beside it."""
    (folder / "mine.py").write_text(code)
    (folder / "sweep.yaml").write_text(yaml.safe_dump({**SWEEP, **changes}))
    return folder / "sweep.yaml"


def trained_alone(sweep: Path) -> Path:
    """Trains the sweep without Ray and without any disturbance."""
    run = sweep.parent / "undisturbed"
    done = orchestrate("sweep", sweep, "--no-ray", "--out", run, cwd=sweep.parent)
    assert done.returncode in (0, 3), done.stderr
    return run


def recorded(run: Path) -> int:
    """Returns the number of trials in separate files. A complete sweep has none."""
    files = run.glob("trials/**/trials-*.parquet")
    return sum(pq.read_metadata(file).num_rows for file in files)


def children() -> set[int]:
    """The processes of this one, also if they have ended and nobody has asked how."""
    tasks = Path("/proc/self/task")
    return {int(pid) for file in tasks.glob("*/children") for pid in file.read_text().split()}


def trials_of(path: Path) -> list[Mapping[str, Any]]:
    run = RunFiles(path)
    return [row for study in run.studies() for row in run.trials(study.key).to_pylist()]


def frontier(run: Path) -> list[dict[str, Any]]:
    """Returns the columns of the frontier that are the same in every run, which durations are
    not."""
    rows = pq.ParquetFile(run / "frontier.parquet").read().to_pylist()
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def assert_same(run: Path, truth: Path) -> None:
    assert (run / "frontier.csv").read_bytes() == (truth / "frontier.csv").read_bytes()
    assert frontier(run) == frontier(truth)
    assert not recorded(run), "put together"
    outcomes = [
        [(trial["trial"], trial["status"], trial["steps"]) for trial in trials_of(each)]
        for each in (run, truth)
    ]
    assert outcomes[0] == outcomes[1]
