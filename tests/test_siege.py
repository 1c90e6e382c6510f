"""Any process of a sweep may be killed or stopped, and any signal sent: it says so, and the answer
stays what it is."""

import json
import os
import random
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from driving import (
    AGENTS,
    PATIENCE,
    PATIENT,
    Driver,
    assert_same,
    describe,
    driving,
    files,
    trained_alone,
    trials_of,
    undisturbed,
    waiting,
)

pytestmark = pytest.mark.slow

PARTS = {
    "control store": "gcs_server",
    "raylet": "raylet/raylet",
    "dashboard agent": "ray::DashboardAgent",
    "runtime agent": "ray::RuntimeEnvAgent",
    "dashboard": "dashboard/dashboard.py",
    "board": "ray::_Board",
}

SMALL = {"workloads": ["mine.py:Patient"], "batch_sizes": [64], "budget": {"steps": 2000}}

ONE_BY_ONE = {"resources": {"stack": 1}}


def small(folder: Path, **changes: Any) -> Path:
    return describe(folder, PATIENT, **SMALL, **changes)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_alone(small(tmp_path_factory.mktemp("truth")))


def process_of(driver: Driver, part: str) -> int:
    """The process id of one of Ray's own."""
    return driver.wait_until(
        lambda: next((pid for pid, title in driver.family().items() if PARTS[part] in title), None)
    )


def test_without_its_dashboard_and_board_ray_goes_on(truth: Path, tmp_path: Path) -> None:
    run, env = tmp_path / "run", {**os.environ, "ORCHESTRATE_DASHBOARD": "1"}
    with driving(tmp_path, "sweep", small(tmp_path), "--out", run, env=env) as driver:
        with waiting(tmp_path, after=1):
            driver.wait_until(lambda: files(run))
            for part in ("dashboard", "board"):
                os.kill(process_of(driver, part), signal.SIGKILL)
        code, said = driver.end()
    assert code == 0, said
    assert "anew" not in said
    assert_same(run, truth)


def test_ray_is_started_anew_where_a_part_of_it_has_died(truth: Path, tmp_path: Path) -> None:
    """The raylet ends with its agents."""
    run = tmp_path / "run"
    with driving(tmp_path, "sweep", small(tmp_path), "--out", run) as driver:
        parts = ["control store", "dashboard agent"]
        with waiting(tmp_path):
            for death, part in enumerate(parts, start=1):
                driver.wait_until(lambda: training(driver))
                os.kill(process_of(driver, part), signal.SIGKILL)
                driver.wait_until(
                    lambda death=death: f"restart {death} of" in driver.said.read_text()
                )
        code, said = driver.end()
    assert code == 0, said
    for death, part in enumerate(parts, start=1):
        assert re.search(rf"Ray's (raylet|{part}) has died", said)
        assert f"anew (restart {death} of at most 3)" in said
    assert_same(run, truth)


def test_it_is_not_started_anew_for_ever(tmp_path: Path) -> None:
    told = {"reason": "Ray's raylet has died.", "count": 4, "asked_to_end": False}
    env = {**os.environ, "ORCHESTRATE_RAY_DIED": json.dumps(told)}
    sweep = small(tmp_path)
    with driving(tmp_path, "sweep", sweep, "--out", tmp_path / "run", env=env) as driver:
        code, said = driver.end()
    assert code == 1, said
    assert "error: Ray's raylet has died. It was started anew 3 times before." in said


STUBBORN = """
import ctypes, os, sys
from pathlib import Path
from orchestrator.workloads.digits import DigitsMLP

class Strange(Exception):
    def __init__(self, where, why):
        super().__init__(f"{where}: {why}")

class Stubborn(DigitsMLP):
    def loss(self, model, batch, *, flaw: float = 0.0):
        if len(batch[0]) > 2:  # and not only looked at before the sweep
            if Path("dies").exists():
                os._exit(7)
            if Path("holds-the-lock").exists():
                Path("holds-the-lock").rename("held")
                ctypes.PyDLL(None).sleep(10**6)
            if flaw > 0.9:
                raise Strange("a long story of how the node died", "x" * 30_000_000)
            if flaw > 0.7:
                sys.exit("enough")
        return super().loss(model, batch)
"""

OWN = {
    "workloads": ["mine.py:Stubborn"],
    "recipes": [{"name": "own", "optimizer": "sgd", "space": {"flaw": {"low": 0, "high": 0.6}}}],
    "batch_sizes": [64],
    # Its loss looks at a number, which a stack only finds out about while it trains.
    "resources": {"stack": 1},
}


@pytest.fixture(scope="module")
def truth_of_own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undisturbed(tmp_path_factory.mktemp("own"), code=STUBBORN, **OWN)


def training(driver: Driver) -> list[int]:
    """Processes that have something to train now; others of `ranks` may have nothing to do."""
    family = sorted(driver.family().items())
    return [pid for pid, title in family if title.startswith("ray::Gang.train")]


def test_a_process_that_is_stopped_is_replaced(truth: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with driving(tmp_path, "sweep", small(tmp_path), "--out", run) as driver:
        # The one that trains: one pack is all there is, so the other gang may have nothing to do.
        with waiting(tmp_path):
            os.kill(driver.wait_until(lambda: training(driver))[0], signal.SIGSTOP)
        code, said = driver.end()
    assert code == 0, said
    assert "was stopped for" in (run / "log.txt").read_text()
    assert_same(run, truth)


def test_a_trial_that_holds_the_interpreters_lock_is_ended_from_outside(
    truth_of_own: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    (tmp_path / "holds-the-lock").touch()
    sweep = describe(tmp_path, code=STUBBORN, **OWN, faults={"hang_seconds": 3})
    with driving(tmp_path, "sweep", sweep, "--out", run) as driver:
        code, said = driver.end()
    assert code == 0, said
    assert (tmp_path / "held").exists()
    assert "is tried again" in (run / "log.txt").read_text()
    assert_same(run, truth_of_own)


def test_a_sweep_whose_trials_all_end_their_process_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "dies").touch()
    sweep = describe(tmp_path, code=STUBBORN, **OWN)
    with driving(tmp_path, "sweep", sweep, "--out", tmp_path / "run") as driver:
        code, said = driver.end()
    assert code == 1, said
    assert re.search(r"Nothing but failures \((6|7) so far\)", said)
    assert "Traceback" not in said


def test_errors_are_told_in_their_own_words_and_briefly(tmp_path: Path) -> None:
    own = {"name": "own", "optimizer": "sgd", "space": {"flaw": {"low": 0.6, "high": 1}}}
    sweep = describe(
        tmp_path, code=STUBBORN, **{**OWN, "recipes": [own]}, faults={"max_failures": 0}
    )
    run = tmp_path / "run"
    with driving(tmp_path, "sweep", sweep, "--out", run) as driver:
        code, said = driver.end()
    assert code in {0, 3}, said
    for trial in trials_of(run):
        flaw = json.loads(trial["params"])["flaw"]
        if flaw > 0.9:
            assert "mine.py.Strange: a long story of how the node died: xxx" in trial["error"]
            assert len(trial["error"]) < 20_000
        elif flaw > 0.7:
            assert trial["error"].endswith("SystemExit: enough")
    assert (run / "log.txt").stat().st_size < 10**6
    assert "tried again" not in (run / "log.txt").read_text(), "no machine was lost"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_ends_a_sweep_which_writes_up_what_there_is(
    number: signal.Signals, tmp_path: Path
) -> None:
    """As a terminal and `timeout` send them: to the whole group of processes."""
    run = tmp_path / "run"
    with driving(tmp_path, "sweep", small(tmp_path), "--out", run) as driver:
        with waiting(tmp_path, after=2):
            driver.wait_until(lambda: len(files(run)) >= 2)
            began = time.monotonic()
            os.killpg(driver.process.pid, number)
        code, said = driver.end()
    assert code == 130, said
    assert time.monotonic() - began < 50, "Ray would wait for a minute for its control store"
    assert f"orchestrate resume {run}" in said
    assert (run / "frontier.csv").exists()
    assert (run / "report.html").exists()
    assert "Traceback" not in said


def catches(process: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{process}/status").read_text()
    (caught,) = re.findall(r"SigCgt:\s*(\w+)", status)
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("moment", ["planning", "starting Ray"])
def test_a_signal_at_the_start_ends_it_as_well(moment: str, tmp_path: Path) -> None:
    """Also of a sweep that a script has started in the background, for which Ctrl-C is ignored."""
    run, sweep = tmp_path / "run", small(tmp_path)
    ignoring = ["env", "--ignore-signal=INT"]
    with driving(tmp_path, "sweep", sweep, "--out", run, before=ignoring) as driver:
        if moment == "planning":
            driver.wait_until(lambda: catches(driver.process.pid, signal.SIGTERM))
        else:
            process_of(driver, "control store")
        os.killpg(driver.process.pid, signal.SIGTERM)
        code, said = driver.end()
    assert code == 130, said
    assert "Interrupted" in said
    assert "Traceback" not in said


def test_a_signal_ends_a_calibration(tmp_path: Path) -> None:
    with (
        waiting(tmp_path),
        driving(tmp_path, "plan", small(tmp_path), "--calibrate") as driver,
    ):
        driver.wait_until(lambda: training(driver))
        driver.process.send_signal(signal.SIGTERM)
        code, said = driver.end()
    assert code == 130, said
    assert "SIGTERM" not in said, "Ray's own handler prints a stack and aborts"


def test_it_ends_when_asked_to_while_a_part_of_ray_is_stopped(tmp_path: Path) -> None:
    """Ray itself would wait for that part for ever."""
    run = tmp_path / "run"
    with driving(tmp_path, "sweep", small(tmp_path), "--out", run) as driver:
        with waiting(tmp_path):
            driver.wait_until(lambda: training(driver))
            os.kill(process_of(driver, "raylet"), signal.SIGSTOP)
        driver.process.send_signal(signal.SIGINT)
        code, said = driver.end()
    assert code == 130, said
    assert f"resume {run}" in said


def memory_of_machine(available: bool = False) -> int:
    """In bytes: all of it, or what is free to be taken."""
    name = "MemAvailable" if available else "MemTotal"
    (kilobytes,) = re.findall(rf"{name}:\s*(\d+)", Path("/proc/meminfo").read_text())
    return 1024 * int(kilobytes)


def test_a_trial_that_takes_all_memory_fails_alone(tmp_path: Path) -> None:
    takes_all = "held = b'x' * (9 * 2**30); ctypes.CDLL(None).sleep(60)"
    hungry = STUBBORN.replace('sys.exit("enough")', takes_all)
    own = {"name": "own", "optimizer": "sgd", "space": {"flaw": {"low": 0, "high": 0.85}}}
    sweep = describe(tmp_path, code=hungry, **{**OWN, "recipes": [own]}, faults={"max_failures": 0})
    # Above what others on this machine hold by now, and may come to hold.
    total, free = memory_of_machine(), memory_of_machine(available=True)
    threshold = f"{1 - (free - 5 * 2**30) / total:.3f}"
    memory = {"RAY_memory_usage_threshold": threshold, "RAY_memory_monitor_refresh_ms": "100"}
    run = tmp_path / "run"
    with driving(tmp_path, "sweep", sweep, "--out", run, env={**os.environ, **memory}) as driver:
        code, said = driver.end()
    assert code in {0, 3}, said
    ended = [trial["error"] for trial in trials_of(run) if trial["status"] == "failed"]
    assert ended
    assert any(re.search(r"which held \d+\.\d+ GB.*resources\.cpus_per_rank", e) for e in ended)
    assert len(trials_of(run)) == 8


def test_storage_that_stays_unwritable_is_said_and_ends_the_sweep(tmp_path: Path) -> None:
    run = tmp_path / "run"
    sweep = small(tmp_path, faults={"storage_seconds": 5})
    with driving(tmp_path, "sweep", sweep, "--out", run) as driver:
        with waiting(tmp_path, after=1):
            driver.wait_until(lambda: files(run))
            (run / "trials").rename(run / "aside")
            (run / "trials").touch()
        code, said = driver.end()
    assert code == 1, said
    assert f"{run} can't be written: Not a directory" in said
    assert "5 s (faults.storage_seconds)" in said
    assert re.search(r"error: \d+ finished trials could not be written", said)
    assert f"orchestrate resume {run}" in said


def test_a_sweep_that_can_not_write_stops_within_seconds(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with driving(tmp_path, "sweep", small(tmp_path), "--out", run) as driver:
        with waiting(tmp_path, after=1):
            driver.wait_until(lambda: files(run))
            (run / "trials").rename(run / "aside")
            (run / "trials").touch()
        driver.wait_until(lambda: "can't be written" in (run / "log.txt").read_text())
        began = time.monotonic()
        driver.process.send_signal(signal.SIGINT)
        code, said = driver.end()
    assert code == 1, said
    assert time.monotonic() - began < 60
    assert "could not be written" in said


def test_a_search_that_learns_waits_for_trials_that_it_lost(tmp_path: Path) -> None:
    searching = {
        **SMALL,
        **ONE_BY_ONE,  # the end of a stack counts against none of its trials
        "search": {"algorithm": "tpe", "trials": 8, "generation": 4},
        "faults": {"max_failures": 0},
    }
    truth = undisturbed(tmp_path, PATIENT, **searching)
    run = tmp_path / "run"
    with driving(tmp_path, "sweep", tmp_path / "sweep.yaml", "--out", run) as driver:
        with waiting(tmp_path):
            killed = driver.wait_until(lambda: training(driver))[0]
            os.kill(killed, signal.SIGKILL)
            driver.wait_until(lambda: killed not in driver.family())
        code, said = driver.end()
    assert code == 1, said
    assert re.search(r"lost at every attempt: mine.py:Patient sgd batch size 64 trial \d", said)
    assert len(trials_of(run)) < 8
    with driving(tmp_path, "resume", run) as driver:
        code, said = driver.end()
    assert code == 0, said
    assert_same(run, truth)


ATTACKS = 3
"""On the processes of each series."""


@pytest.fixture(scope="module")
def truth_one_by_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_alone(small(tmp_path_factory.mktemp("one-by-one"), **ONE_BY_ONE))


def test_a_random_series_of_kills_and_stops_changes_nothing(
    series: int, truth: Path, truth_one_by_one: Path, tmp_path: Path
) -> None:
    """Over all processes of a sweep, its own included."""
    chance = random.Random(series)
    changes, truth = (ONE_BY_ONE, truth_one_by_one) if series % 2 else ({}, truth)
    run = tmp_path / "run"
    arguments = ["sweep", small(tmp_path, **changes), "--out", run]
    attacks: list[str] = []
    code = None
    while code != 0:
        with driving(tmp_path, *arguments) as driver:
            while len(attacks) < ATTACKS and driver.process.poll() is None:
                attacks.append(attack(driver, chance, run))
            with suppress(ProcessLookupError):  # It may be stopped, which nothing but this ends.
                os.kill(driver.process.pid, signal.SIGCONT)
            code = driver.process.wait(timeout=PATIENCE)
            driver.leaves_nothing(but=AGENTS)
            said = driver.said.read_text()
        killed = code == -signal.SIGKILL
        assert killed or code in {0, 130} or f"resume {run}" in said, (code, said, attacks)
        assert code != 130 or f"resume {run}" in said, (said, attacks)
        arguments = ["resume", run] if (run / "sweep.yaml").exists() else arguments
    assert_same(run, truth)


def is_stopped(driver: Driver) -> bool:
    with suppress(OSError):
        status = Path(f"/proc/{driver.process.pid}/status").read_text()
        return "(stopped)" in status
    return False


def attack(driver: Driver, chance: random.Random, run: Path) -> str:
    """Waits for some trials more, then kills or stops a process at random, or asks for the end;
    returns what it did."""
    there = len(files(run))
    more = 0 if is_stopped(driver) else chance.randint(0, 2)
    with suppress(AssertionError):  # the sweep may end before
        driver.wait_until(lambda: len(files(run)) >= there + more and driver.ranks())
    family = driver.family()
    if driver.process.pid not in family:
        return "nothing: it had ended"
    ranks, others = driver.ranks(), sorted(family.keys() - {driver.process.pid})
    # As often as all others together: those that train, and the command itself.
    pid = chance.choice([chance.choice(ranks or others), chance.choice(others), driver.process.pid])
    number = chance.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
    if number == signal.SIGTERM:
        pid = driver.process.pid
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    name = "orchestrate" if pid == driver.process.pid else family[pid][:50]
    return f"{number.name} {name} after {there + more} trials"
