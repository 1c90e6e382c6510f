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


def test_one_signal_ends_a_sweep_which_writes_up_what_there_is(tmp_path: Path) -> None:
    """As `timeout` sends it: to the whole group of processes."""
    run = tmp_path / "run"
    with driving(tmp_path, "sweep", small(tmp_path), "--out", run) as driver:
        with waiting(tmp_path, after=2):
            driver.wait_until(lambda: len(files(run)) >= 2)
            began = time.monotonic()
            os.killpg(driver.process.pid, signal.SIGTERM)
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
    total, free = memory_of_machine(), memory_of_machine(available=True)
    threshold = f"{1 - (free - 3 * 2**30) / total:.3f}"
    memory = {"RAY_memory_usage_threshold": threshold, "RAY_memory_monitor_refresh_ms": "100"}
    run = tmp_path / "run"
    with driving(tmp_path, "sweep", sweep, "--out", run, env={**os.environ, **memory}) as driver:
        code, said = driver.end()
    assert code in {0, 3}, said
    ended = [trial["error"] for trial in trials_of(run) if trial["status"] == "failed"]
    (error,) = ended
    assert re.search(r"which held \d+\.\d+ GB.*resources\.cpus_per_rank", error)
    assert len(trials_of(run)) == 2


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
