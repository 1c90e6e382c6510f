"""Whatever happens to a sweep, it comes to what it would have come to anyway."""

import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from conftest import command, orchestrate, wait_for
from ray_nodes import environment, kill_node, running_head, running_node

from orchestrator.results import Run

pytestmark = pytest.mark.slow

PATIENCE = 240
"""Seconds after which a condition won't come about any more, on however busy a machine."""

GONE_WITHIN = 180
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

TITLES = ("ray::Gang", "ray::ResourceTrainable", "ray::_Peer")
"""Of processes that train; Tune wraps the gang in a class of its own."""

ON_TWO_RANKS = {
    "batch_sizes": [64],
    "budget": {"steps": 400},
    "resources": {"examples_per_device": 32, "max_devices": 2},
}

SEARCHING = {
    "batch_sizes": [64, 128],
    "search": {"algorithm": "tpe", "trials": 12, "generation": 4},
    "budget": {"steps": 800},
}

FLAWED = """
import time
from pathlib import Path
from orchestrator.workloads.digits import DigitsMLP

class Flawed(DigitsMLP):
    def loss(self, model, batch, *, flaw: float = 0.0):
        trained = len(batch[0]) > 2  # and not only looked at before the sweep
        if trained and Path("flawed").exists() and flaw > 0.85:
            raise RuntimeError("no loss where the flaw is large")
        if trained and Path("flawed").exists() and flaw > 0.7:
            time.sleep(10**6)
        if trained and Path("hang-once").exists():
            Path("hang-once").rename("hung")
            time.sleep(10**6)
        return super().loss(model, batch)
"""

OWN = {
    "workloads": ["mine.py:Flawed"],
    "recipes": [{"name": "own", "optimizer": "sgd", "space": {"flaw": {"low": 0, "high": 1}}}],
    "batch_sizes": [64],
}


@dataclass(frozen=True, kw_only=True)
class Driver:
    """A running `orchestrate`. What Ray starts for it belongs to its session, and to no other."""

    process: subprocess.Popen[bytes]
    printed: Path
    said: Path

    def family(self) -> dict[int, str]:
        """Process id -> title of all there are of its session, also after its end."""
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
        """The processes that train."""
        family = sorted(self.family().items())
        return [pid for pid, title in family if title.startswith(TITLES)]

    def wait_until(self, condition: Callable[[], Any]) -> Any:
        """What it then comes to."""
        return wait_for(condition, self.process, self.said)

    def end(self) -> tuple[int, str]:
        """Its exit code and what it said; nothing of it is left."""
        code = self.process.wait(timeout=PATIENCE)
        self.leaves_nothing()
        return code, self.said.read_text()

    def kill(self) -> None:
        """Its workers end with it."""
        self.process.kill()
        self.process.wait()
        self.leaves_nothing(but=AGENTS)

    def leaves_nothing(self, but: tuple[str, ...] = ()) -> None:
        while left := {pid: title for pid, title in self.family().items() if title not in but}:
            with suppress(ProcessLookupError), os.fdopen(os.pidfd_open(min(left))) as one:
                assert select.select([one], [], [], GONE_WITHIN)[0], f"left behind: {left}"


@contextmanager
def driving(
    folder: Path, *arguments: object, env: Mapping[str, str] | None = None
) -> Iterator[Driver]:
    printed, said = folder / "printed.txt", folder / "said.txt"
    # Files, since Ray's processes would keep a pipe open.
    with printed.open("wb") as output, said.open("wb") as errors:
        process = subprocess.Popen(
            command(*arguments), cwd=folder, env=env,
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


def describe(folder: Path, **changes: Any) -> Path:
    """Writes the sweep, with changes, and the workload of one's own beside it."""
    (folder / "mine.py").write_text(FLAWED)
    (folder / "sweep.yaml").write_text(yaml.safe_dump({**SWEEP, **changes}))
    return folder / "sweep.yaml"


def undisturbed(folder: Path, **changes: Any) -> Path:
    run = folder / "undisturbed"
    result = orchestrate("sweep", describe(folder, **changes), "--out", run, cwd=folder)
    assert result.returncode == 0, result.stderr
    return run


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undisturbed(tmp_path_factory.mktemp("truth"))


@pytest.fixture(scope="module")
def truth_on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undisturbed(tmp_path_factory.mktemp("pair"), **ON_TWO_RANKS)


@pytest.fixture(scope="module")
def truth_of_own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undisturbed(tmp_path_factory.mktemp("own"), **OWN)


def files(run: Path) -> list[Path]:
    """A file per finished trial; once the sweep is complete there are none."""
    return sorted(run.glob("trials/**/trial-*.parquet"))


def rows_of(path: Path) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    return rows


def trials_of(path: Path) -> list[Mapping[str, Any]]:
    run = Run(path)
    return [row for study in run.studies() for row in run.trials(study.key).to_pylist()]


def frontier(run: Path) -> list[dict[str, Any]]:
    """All that is the same every time: not durations."""
    rows = rows_of(run / "frontier.parquet")
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def assert_same(run: Path, truth: Path) -> None:
    assert (run / "frontier.csv").read_bytes() == (truth / "frontier.csv").read_bytes()
    assert frontier(run) == frontier(truth)
    assert not files(run), "put together"
    outcomes = [
        [(trial["trial"], trial["status"], trial["steps"]) for trial in trials_of(each)]
        for each in (run, truth)
    ]
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("shape", ["one_rank", "two_ranks"])
def test_a_rank_that_is_killed_changes_nothing(
    shape: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    chance = random.Random(shape)
    pair = shape == "two_ranks"
    truth = request.getfixturevalue("truth_on_two_ranks" if pair else "truth")
    run = tmp_path / "run"
    sweep = describe(tmp_path, **(ON_TWO_RANKS if pair else {}))
    with driving(tmp_path, "sweep", sweep, "--out", run, "--json") as driver:
        for _ in range(2):
            there = len(files(run)) + chance.randint(1, 2)
            driver.wait_until(lambda there=there: len(files(run)) >= there)
            os.kill(chance.choice(driver.wait_until(driver.ranks)), signal.SIGKILL)
        code, said = driver.end()
    assert code == 0, said
    assert "is tried again" in (run / "log.txt").read_text()
    assert all(row["reached"] for row in json.loads(driver.printed.read_text())), "nothing else"
    assert_same(run, truth)


def test_a_driver_that_is_killed_ten_times_comes_to_the_same(truth: Path, tmp_path: Path) -> None:
    chance = random.Random(2)
    run = tmp_path / "run"
    arguments = ["sweep", describe(tmp_path), "--out", run]
    for kill in range(10):
        # None at all: while trials are being started.
        more = 0 if kill in {0, 5} else chance.randint(1, 2)
        before = {path: path.read_bytes() for path in files(run)}
        with driving(tmp_path, *arguments) as driver:
            driver.wait_until(
                lambda more=more, before=before, driver=driver: (
                    driver.ranks() and len(files(run)) >= len(before) + more
                )
            )
            driver.kill()
        assert all(path.read_bytes() == content for path, content in before.items())
        arguments = ["resume", run]
    assert 0 < len(files(run)) < TRIALS
    with driving(tmp_path, "resume", run) as driver:
        code, said = driver.end()
    assert code == 0, said
    assert_same(run, truth)


def test_trials_that_raise_or_hang_fail_alone_and_are_tried_again_by_resume(
    truth_of_own: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    (tmp_path / "flawed").touch()
    sweep = describe(tmp_path, **OWN, faults={"hang_seconds": 3, "max_failures": 1})
    with driving(tmp_path, "sweep", sweep, "--out", run) as driver:
        code, said = driver.end()
    assert code in {0, 3}, said
    for trial, as_it_should_be in zip(trials_of(run), trials_of(truth_of_own), strict=True):
        flaw = json.loads(trial["params"])["flaw"]
        assert (trial["status"] == "failed") == (flaw > 0.7)
        if flaw > 0.85:
            assert trial["error"].endswith("RuntimeError: no loss where the flaw is large")
            assert "mine.py" in trial["error"]
        elif flaw > 0.7:
            assert "took no step for 3 seconds" in trial["error"]
            assert "time.sleep(10**6)" in trial["error"]
        else:
            assert trial["status"] == as_it_should_be["status"]
            assert trial["steps"] == as_it_should_be["steps"]
    assert Counter(trial["status"] for trial in trials_of(run))["failed"] == 2
    assert "reached" in {trial["status"] for trial in trials_of(run)}

    (tmp_path / "flawed").unlink()
    with driving(tmp_path, "resume", run) as driver:
        code, said = driver.end()
    assert code == 0, said
    assert_same(run, truth_of_own)


def test_a_trial_that_hangs_once_is_ended_and_tried_again(
    truth_of_own: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    (tmp_path / "hang-once").touch()
    sweep = describe(tmp_path, **OWN, faults={"hang_seconds": 3})
    with driving(tmp_path, "sweep", sweep, "--out", run) as driver:
        code, said = driver.end()
    assert code == 0, said
    assert (tmp_path / "hung").exists()
    assert "is tried again" in (run / "log.txt").read_text()
    assert_same(run, truth_of_own)


def test_storage_that_fails_for_a_while_loses_nothing(truth: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with driving(tmp_path, "sweep", describe(tmp_path), "--out", run) as driver:
        for times, what in enumerate(["trials", "measurements"], start=1):
            driver.wait_until(lambda times=times: len(files(run)) >= times)
            before = (run / "log.txt").read_text().count("can't be written")
            with standing_still(driver):
                (run / what).rename(run / "aside")
                (run / what).touch()
            driver.wait_until(
                lambda before=before: (
                    (run / "log.txt").read_text().count("can't be written") > before
                )
            )
            with standing_still(driver):
                (run / what).unlink()
                (run / "aside").rename(run / what)
        code, said = driver.end()
    assert code == 0, said
    assert_same(run, truth)
    (session,) = json.loads((run / "sessions.json").read_text())
    assert session["trials"] == TRIALS, "none was trained twice"


def test_a_node_that_is_lost_changes_nothing(truth: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    sweep = describe(tmp_path, resources={"gpus_per_device": 0})
    with running_head(cpus=0) as head, running_node(head, tmp_path / "lost.txt", cpus=2) as lost:
        env = environment(RAY_AUTH_TOKEN=head.token, RAY_ADDRESS=head.address)
        with driving(tmp_path, "sweep", sweep, "--out", run, env=env) as driver:
            driver.wait_until(lambda: len(files(run)) >= 3)
            kill_node(lost)
            with running_node(head, tmp_path / "other.txt", cpus=2):
                code, said = driver.end()
    assert code == 0, said
    assert "is tried again" in (run / "log.txt").read_text()
    assert_same(run, truth)


@contextmanager
def standing_still(driver: Driver) -> Iterator[None]:
    os.kill(driver.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(driver.process.pid, signal.SIGCONT)


def test_a_run_has_one_driver_at_a_time(truth: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with driving(tmp_path, "sweep", describe(tmp_path), "--out", run) as first:
        first.wait_until(lambda: files(run))
        with standing_still(first):
            for arguments in (["resume", run], ["sweep", tmp_path / "sweep.yaml", "--out", run]):
                second = orchestrate(*arguments)
                assert second.returncode == 2, second.stderr
                assert f"process {first.process.pid} on " in second.stderr
        first.process.kill()
        # At once, while the first one's Ray may still be there.
        result = orchestrate("resume", run)
        assert result.returncode == 0, result.stderr
    assert_same(run, truth)


def test_a_run_goes_on_wherever_it_is_moved_or_copied_to(truth: Path, tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    moved = tmp_path / "elsewhere" / "under another name"
    moved.parent.mkdir()
    with driving(tmp_path, "sweep", describe(tmp_path), "--out", run) as killed:
        killed.wait_until(lambda: len(files(run)) >= 3)
        killed.kill()
        shutil.copytree(run, copy)
        run.rename(moved)
        for place in (copy, moved):
            kept = trials_of(place)
            with driving(tmp_path, "resume", place) as driver:
                code, said = driver.end()
            assert code == 0, said
            assert len(kept) >= 3
            assert all(trial in trials_of(place) for trial in kept), "none was trained again"
            assert_same(place, truth)
        assert not run.exists()
        killed.leaves_nothing()


def test_an_adaptive_search_goes_on_after_an_interrupt_as_if_there_had_been_none(
    tmp_path: Path,
) -> None:
    truth = undisturbed(tmp_path, **SEARCHING)
    run = tmp_path / "run"
    with driving(tmp_path, "sweep", tmp_path / "sweep.yaml", "--out", run) as driver:
        # In the midst of the second generation of one study, at the latest.
        driver.wait_until(lambda: len(files(run)) >= 6)
        stopped = orchestrate("stop", run)
        code, said = driver.end()
    assert stopped.returncode == 0, stopped.stderr
    assert "Nothing is running" in orchestrate("stop", run).stderr
    assert code == 130, said
    assert f"orchestrate resume {run}" in re.sub(r"\s+", " ", said)
    assert "Traceback" not in said
    assert (run / "report.html").exists()
    assert 6 <= len(files(run)) < 24
    with driving(tmp_path, "resume", run) as driver:
        code, said = driver.end()
    assert code == 0, said
    assert_same(run, truth)
