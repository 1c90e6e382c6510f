"""Any process of a sweep may be killed, and any signal sent: it says so, and the answer stays the
same."""

import json
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import orchestrate
from driving import (
    AGENTS,
    PATIENCE,
    PATIENT,
    Driver,
    assert_same,
    describe,
    driving,
    recorded,
    trained_alone,
    trials_of,
    waiting,
)

pytestmark = pytest.mark.slow

PARTS = {
    "control store": "gcs_server",
    "raylet": "raylet/raylet",
    "dashboard agent": "ray::DashboardAgent",
    "board": "ray::_Board",
}

SMALL = {"workloads": ["mine.py:Patient"], "batch_sizes": [64], "budget": {"steps": 2000}}


def small(folder: Path, **changes: Any) -> Path:
    return describe(folder, PATIENT, **{**SMALL, **changes})


def process_of(driver: Driver, part: str) -> int:
    """The process id of one of Ray's own."""
    return driver.wait_until(
        lambda: next((pid for pid, title in driver.family().items() if PARTS[part] in title), None)
    )


def training(driver: Driver) -> list[int]:
    """Processes that have something to train now; others of `ranks` may have nothing to do."""
    family = sorted(driver.family().items())
    return [pid for pid, title in family if title.startswith("ray::Gang.train")]


@contextmanager
def answered(driver: Driver, file: Path, words: str) -> Iterator[None]:
    """Waits until the file says that once more."""
    before = file.read_text().count(words)
    yield
    driver.wait_until(lambda: file.read_text().count(words) > before)


def kills_one_that_trains(driver: Driver, run: Path) -> None:
    with answered(driver, run / "log.txt", "is tried again"):
        # Between two parts of a trial, its process has nothing to do for a moment.
        os.kill(driver.wait_until(lambda: training(driver))[0], signal.SIGKILL)


def kills_the_board(driver: Driver, run: Path) -> None:
    """Ray can do without it."""
    os.kill(process_of(driver, "board"), signal.SIGKILL)


def kills(*parts: str) -> Callable[[Driver, Path], None]:
    """Kills the first, which may end the others."""

    def attack(driver: Driver, run: Path) -> None:
        with answered(driver, driver.said, "anew (restart "):
            os.kill(process_of(driver, parts[0]), signal.SIGKILL)
        assert re.findall(r"Ray's (.*?) has died", driver.said.read_text())[-1] in parts

    return attack


def kills_the_command(driver: Driver, run: Path) -> None:
    """While it lives, no other one trains the same run."""
    second = orchestrate("resume", run, cwd=run.parent)
    assert second.returncode == 2, second.stderr
    assert f"process {driver.process.pid} on " in second.stderr
    driver.process.kill()
    driver.process.wait()


ATTACKS = (kills_one_that_trains, kills_the_board, kills_the_command)


def test_attacks_in_any_order_change_nothing(series: int, tmp_path: Path) -> None:
    # In a stack, all of them could end in the same second.
    one_by_one = {"resources": {"stack": 1}, "budget": {"steps": 400}}
    truth, run = trained_alone(small(tmp_path, **one_by_one)), tmp_path / "run"
    chance = random.Random(series)
    vital = chance.choice(["control store", "dashboard agent"])  # Ray's start takes seconds
    attacks = [*ATTACKS, kills(vital, "raylet")]
    chance.shuffle(attacks)
    arguments, code = ["sweep", tmp_path / "sweep.yaml", "--out", run], None
    held = ExitStack()  # between two attacks, too, or all could end there
    while code != 0:
        with driving(tmp_path, *arguments) as driver:
            while attacks and driver.process.poll() is None:
                after = min(chance.randint(0, 1) + recorded(run), 6)
                held.enter_context(waiting(tmp_path, after=after))
                driver.wait_until(lambda least=after: recorded(run) >= least)
                driver.wait_until(lambda: training(driver))
                attacks.pop()(driver, run)
            if not attacks:
                held.close()
            code = driver.process.wait(timeout=PATIENCE)
            driver.leaves_nothing(but=AGENTS)
        assert code in {0, 130, -signal.SIGKILL}, driver.said.read_text()
        arguments = ["resume", run]
    assert not attacks
    assert_same(run, truth)


def after_a_death(folder: Path, **told: Any) -> tuple[int, str]:
    """How the process ends that takes the place of one whose Ray has died."""
    death = {
        "reason": "Ray's raylet has died.",
        "count": 1,
        "asked_to_end": False,
        "to_go_on": False,
    }
    env = {**os.environ, "ORCHESTRATE_RAY_DIED": json.dumps({**death, **told})}
    with driving(folder, "sweep", small(folder), "--out", folder / "run", env=env) as driver:
        return driver.end()


@pytest.mark.parametrize(("to_go_on", "expected"), [(False, 130), (True, 75)])
def test_a_death_while_it_ends_leaves_the_exit_code(
    tmp_path: Path, to_go_on: bool, expected: int
) -> None:
    code, said = after_a_death(tmp_path, asked_to_end=True, to_go_on=to_go_on)
    assert code == expected, said


def test_it_is_not_started_anew_for_ever(tmp_path: Path) -> None:
    code, said = after_a_death(tmp_path, count=4)
    assert code == 1, said
    assert "error: Ray's raylet has died. It was started anew 3 times before." in said


def test_a_signal_while_ray_starts_ends_it_as_well(tmp_path: Path) -> None:
    """Also of a sweep that a script has started in the background, for which Ctrl-C is ignored."""
    run, sweep = tmp_path / "run", small(tmp_path)
    ignoring = ["env", "--ignore-signal=INT"]
    with driving(tmp_path, "sweep", sweep, "--out", run, before=ignoring) as driver:
        process_of(driver, "control store")
        os.killpg(driver.process.pid, signal.SIGTERM)
        code, said = driver.end()
    assert code == 130, said
    assert "Interrupted" in said
    assert "Traceback" not in said


HUNGRY = """
import ctypes
from orchestrator.workloads.digits import DigitsMLP

class Hungry(DigitsMLP):
    def loss(self, model, batch, *, flaw: bool = False):
        if len(batch[0]) > 2 and flaw:
            held = b"x" * (6 * 2**30)
            ctypes.CDLL(None).sleep(60)
        return super().loss(model, batch)
"""


def test_a_trial_that_takes_all_memory_fails_alone(tmp_path: Path) -> None:
    own = {
        "name": "own",
        "optimizer": "sgd",
        "space": {"learning_rate": 0.1, "flaw": {"options": [False, True]}},
    }
    sweep = describe(
        tmp_path, code=HUNGRY, workloads=["mine.py:Hungry"], recipes=[own], batch_sizes=[64],
        search={"algorithm": "grid"}, resources={"stack": 1}, faults={"max_failures": 0},
    )  # fmt: skip
    # Above what others on this machine hold by now, and may come to hold.
    held = psutil.virtual_memory()
    threshold = f"{1 - (held.available - 3 * 2**30) / held.total:.3f}"
    memory = {"RAY_memory_usage_threshold": threshold, "RAY_memory_monitor_refresh_ms": "100"}
    run = tmp_path / "run"
    with driving(tmp_path, "sweep", sweep, "--out", run, env={**os.environ, **memory}) as driver:
        code, said = driver.end()
    assert code in {0, 3}, said
    ended = [trial["error"] for trial in trials_of(run) if trial["status"] == "failed"]
    (error,) = ended
    assert "resources.cpus_per_rank" in error
    assert len(trials_of(run)) == 2


FLAWED = """
import ctypes, os, sys, time
from pathlib import Path
from orchestrator.workloads.digits import DigitsMLP

class Strange(Exception):
    def __init__(self, where, why):
        super().__init__(f"{where}: {why}")

class Flawed(DigitsMLP):
    def loss(self, model, batch, *, flaw: str = "none"):
        # It is not only looked at before the sweep.
        if len(batch[0]) > 2 and Path("flawed").exists():
            if flaw == "raises":
                raise Strange("a long story of how the node died", "x" * 30_000_000)
            if flaw == "exits":
                sys.exit("enough")
            if flaw == "dies":
                os._exit(7)
            if flaw == "hangs":
                time.sleep(10**6)
            if flaw == "holds the lock":
                ctypes.PyDLL(None).sleep(10**6)
        return super().loss(model, batch)
"""

HANGS_AFTER = 20
"""Seconds: on a busy machine, a process that comes up makes no step for some."""

FLAWS = {
    "none": "",
    "raises": "mine.py.Strange: a long story of how the node died: xxx",
    "exits": "SystemExit: enough",
    "dies": "",
    "hangs": "time.sleep(10**6)",
    "holds the lock": f"gave no sign of life for {HANGS_AFTER} seconds",
}
"""What a trial does -> a part of its error."""

OWN = {
    "workloads": ["mine.py:Flawed"],
    "recipes": [
        {
            "name": "own",
            "optimizer": "sgd",
            "space": {"learning_rate": 0.1, "flaw": {"options": [*FLAWS]}},
        }
    ],
    "batch_sizes": [64],
    "search": {"algorithm": "grid"},
    "goals": ["val/error < 0.3"],
    # Its loss looks at text, which a stack only finds out about while it trains.
    "resources": {"stack": 1},
}


def test_what_code_does_to_its_process_is_told_and_done_again_by_resume(tmp_path: Path) -> None:
    truth = trained_alone(describe(tmp_path, FLAWED, **OWN))
    run = tmp_path / "run"
    (tmp_path / "flawed").touch()
    faults = {"hang_seconds": HANGS_AFTER, "max_failures": 0}
    sweep = describe(tmp_path, code=FLAWED, **OWN, faults=faults)
    with driving(tmp_path, "sweep", sweep, "--out", run) as driver:
        code, said = driver.end()
    assert code in {0, 3}, said
    assert {json.loads(trial["params"])["flaw"] for trial in trials_of(run)} == {*FLAWS}
    for trial, as_it_should_be in zip(trials_of(run), trials_of(truth), strict=True):
        flaw = json.loads(trial["params"])["flaw"]
        assert (trial["status"] == "failed") == (flaw != "none")
        if flaw == "none":
            assert trial["steps"] == as_it_should_be["steps"]
        else:
            assert FLAWS[flaw] in trial["error"]
            assert len(trial["error"]) < 20_000
    assert (run / "log.txt").stat().st_size < 10**6
    assert "tried again" not in (run / "log.txt").read_text(), "no machine was lost"

    (tmp_path / "flawed").unlink()
    resumed = orchestrate("resume", run, "--no-ray", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert_same(run, truth)
