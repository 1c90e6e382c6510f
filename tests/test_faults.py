"""Whatever happens to a sweep, it comes to what it would have come to anyway."""

import json
import os
import random
import re
import shutil
import signal
from pathlib import Path

import pytest
from conftest import orchestrate
from driving import (
    AGENTS,
    PATIENT,
    TRIALS,
    assert_same,
    describe,
    driving,
    files,
    standing_still,
    trained_alone,
    trials_of,
    undisturbed,
    waiting,
)

pytestmark = pytest.mark.slow

ON_TWO_RANKS = {
    "batch_sizes": [64],
    "budget": {"steps": 400},
    "resources": {"examples_per_device": 32, "max_devices": 2},
}

SEARCHING = {
    "workloads": ["mine.py:Patient"],
    "batch_sizes": [64, 128],
    "search": {"algorithm": "tpe", "trials": 8, "generation": 4},
    "budget": {"steps": 400},
}

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

FLAWS = {
    "none": "",
    "raises": "mine.py.Strange: a long story of how the node died: xxx",
    "exits": "SystemExit: enough",
    "dies": "",
    "hangs": "time.sleep(10**6)",
    "holds the lock": "gave no sign of life for 2 seconds",
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


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undisturbed(tmp_path_factory.mktemp("truth"))


@pytest.fixture(scope="module")
def truth_on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    result = orchestrate("sweep", describe(folder, **ON_TWO_RANKS), "--out", folder / "run")
    assert result.returncode == 0, result.stderr
    return folder / "run"


def test_a_rank_that_is_killed_changes_nothing(truth_on_two_ranks: Path, tmp_path: Path) -> None:
    chance = random.Random(0)
    run = tmp_path / "run"
    sweep = describe(tmp_path, **ON_TWO_RANKS)
    with driving(tmp_path, "sweep", sweep, "--out", run, "--json") as driver:
        for _ in range(2):
            there = len(files(run)) + chance.randint(1, 2)
            driver.wait_until(lambda there=there: len(files(run)) >= there)
            os.kill(chance.choice(driver.wait_until(driver.ranks)), signal.SIGKILL)
        code, said = driver.end()
    assert code == 0, said
    assert "is tried again" in (run / "log.txt").read_text()
    assert all(row["reached"] for row in json.loads(driver.printed.read_text())), "nothing else"
    assert_same(run, truth_on_two_ranks)


def test_a_driver_that_is_killed_again_and_again_comes_to_the_same(
    truth: Path, tmp_path: Path
) -> None:
    """While trials are started, then while some have ended; the next one goes on, at once the last
    time, and while there is one no other does."""
    run = tmp_path / "run"
    arguments = ["sweep", describe(tmp_path), "--out", run]
    for more in (0, 1):
        before = len(files(run))
        with driving(tmp_path, *arguments) as driver:
            driver.wait_until(
                lambda more=more, before=before, driver=driver: (
                    driver.ranks() and len(files(run)) >= before + more
                )
            )
            if more == 1:
                with standing_still(driver):
                    refused = orchestrate("resume", run)
                assert refused.returncode == 2, refused.stderr
                assert f"process {driver.process.pid} on " in refused.stderr
                driver.process.kill()
                assert 0 < len(files(run)) < TRIALS
                resumed = orchestrate("resume", run)
                assert resumed.returncode == 0, resumed.stderr
                driver.leaves_nothing(but=AGENTS)
            else:
                driver.kill()
        arguments = ["resume", run]
    assert_same(run, truth)


def test_what_code_does_to_its_process_is_told_and_done_again_by_resume(tmp_path: Path) -> None:
    truth = undisturbed(tmp_path, code=FLAWED, **OWN)
    run = tmp_path / "run"
    (tmp_path / "flawed").touch()
    sweep = describe(tmp_path, code=FLAWED, **OWN, faults={"hang_seconds": 2, "max_failures": 0})
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


def test_storage_that_fails_for_a_while_loses_nothing(tmp_path: Path) -> None:
    sweep = describe(tmp_path, PATIENT, workloads=["mine.py:Patient"], batch_sizes=[64])
    truth, run = trained_alone(sweep), tmp_path / "run"
    with driving(tmp_path, "sweep", sweep, "--out", run, "--no-ray") as driver:
        for times, what in enumerate(["trials", "measurements"], start=1):
            with waiting(tmp_path, after=times):
                driver.wait_until(lambda times=times: len(files(run)) >= times)
                (run / what).rename(run / "aside")
                (run / what).touch()
            log = run / "log.txt"
            driver.wait_until(
                lambda times=times, log=log: log.read_text().count("be written; an") >= times
            )
            with standing_still(driver):
                (run / what).unlink()
                (run / "aside").rename(run / what)
        code, said = driver.end()
    assert code == 0, said
    assert_same(run, truth)
    (session,) = json.loads((run / "sessions.json").read_text())
    assert session["trials"] == len(trials_of(run)), "none was trained twice"


def test_storage_that_stays_unwritable_is_said_and_ends_the_sweep(tmp_path: Path) -> None:
    run = tmp_path / "run"
    sweep = describe(
        tmp_path, PATIENT, workloads=["mine.py:Patient"], faults={"storage_seconds": 2}
    )
    with driving(tmp_path, "sweep", sweep, "--out", run, "--no-ray") as driver:
        with waiting(tmp_path, after=1):
            driver.wait_until(lambda: files(run))
            (run / "trials").rename(run / "aside")
            (run / "trials").touch()
        code, said = driver.end()
    assert code == 1, said
    assert f"{run} can't be written: Not a directory" in said
    assert "2 s (faults.storage_seconds)" in said
    assert re.search(r"error: \d+ finished trials could not be written", said)
    assert f"orchestrate resume {run}" in said


def test_a_run_goes_on_wherever_it_is_moved_or_copied_to(truth: Path, tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "elsewhere" / "under another name"
    with driving(tmp_path, "sweep", describe(tmp_path), "--out", run, "--no-ray") as killed:
        killed.wait_until(lambda: len(files(run)) >= 3)
        killed.kill()
    shutil.copytree(run, copy)
    run.rename(tmp_path / "gone")
    kept = trials_of(copy)
    assert len(kept) >= 3
    resumed = orchestrate("resume", copy, "--no-ray", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert all(trial in trials_of(copy) for trial in kept), "none was trained again"
    assert_same(copy, truth)
    assert not run.exists()


def test_an_adaptive_search_goes_on_after_an_interrupt_as_if_there_had_been_none(
    tmp_path: Path,
) -> None:
    truth = undisturbed(tmp_path, PATIENT, **SEARCHING)
    run, sweep = tmp_path / "run", tmp_path / "sweep.yaml"
    with driving(tmp_path, "sweep", sweep, "--out", run, "--no-ray") as driver:
        # In the midst of the second generation of one study, at the latest.
        with waiting(tmp_path, after=6):
            driver.wait_until(lambda: len(files(run)) >= 6)
            os.kill(driver.process.pid, signal.SIGINT)
        code, said = driver.end()
    assert code == 130, said
    assert f"orchestrate resume {run}" in re.sub(r"\s+", " ", said)
    assert "Traceback" not in said
    assert (run / "report.html").exists()
    assert 6 <= len(files(run)) < 16
    resumed = orchestrate("resume", run, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert_same(run, truth)
    assert "Nothing is running" in orchestrate("stop", run).stderr
