"""Whatever happens to a sweep, it comes to what it would have come to anyway."""

import json
import os
import random
import re
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import orchestrate
from driving import (
    AGENTS,
    TRIALS,
    assert_same,
    describe,
    driving,
    files,
    standing_still,
    trials_of,
    undisturbed,
)

pytestmark = pytest.mark.slow

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
    def loss(self, model, batch, *, flaw: str = "none"):
        trained = len(batch[0]) > 2  # and not only looked at before the sweep
        if trained and Path("flawed").exists() and flaw == "raises":
            raise RuntimeError("no loss where the flaw is large")
        if trained and Path("flawed").exists() and flaw == "hangs":
            time.sleep(10**6)
        return super().loss(model, batch)
"""

OWN = {
    "workloads": ["mine.py:Flawed"],
    "recipes": [
        {
            "name": "own",
            "optimizer": "sgd",
            "space": {"flaw": {"options": ["none", "raises", "hangs"]}},
        }
    ],
    "batch_sizes": [64],
    "search": {"trials": 6},
    "goals": ["val/error < 0.3"],
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


@pytest.fixture(scope="module")
def truth_of_own(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Path]:
    return {
        stack: undisturbed(
            tmp_path_factory.mktemp("own"), code=FLAWED, **OWN, resources={"stack": stack}
        )
        for stack in (1, "auto")
    }


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


@pytest.mark.parametrize("stack", [1, "auto"])
def test_trials_that_raise_or_hang_fail_alone_and_are_tried_again_by_resume(
    stack: Any, truth_of_own: dict[Any, Path], tmp_path: Path
) -> None:
    run, truth = tmp_path / "run", truth_of_own[stack]
    (tmp_path / "flawed").touch()
    sweep = describe(
        tmp_path, code=FLAWED, **OWN, faults={"hang_seconds": 3, "max_failures": 1},
        resources={"stack": stack},
    )  # fmt: skip
    with driving(tmp_path, "sweep", sweep, "--out", run) as driver:
        code, said = driver.end()
    assert code in {0, 3}, said
    for trial, as_it_should_be in zip(trials_of(run), trials_of(truth), strict=True):
        flaw = json.loads(trial["params"])["flaw"]
        assert (trial["status"] == "failed") == (flaw != "none")
        if flaw == "raises":
            assert trial["error"].endswith("RuntimeError: no loss where the flaw is large")
            assert "mine.py" in trial["error"]
        elif flaw == "hangs":
            assert "took no step for 3 seconds" in trial["error"]
            assert "time.sleep(10**6)" in trial["error"]
        else:
            assert trial["status"] == as_it_should_be["status"]
            assert trial["steps"] == as_it_should_be["steps"]
            assert (trial["width"] > 1) == (stack == "auto")
    assert Counter(json.loads(trial["params"])["flaw"] for trial in trials_of(run)).keys() == {
        "none", "raises", "hangs",
    }  # fmt: skip
    assert "reached" in {trial["status"] for trial in trials_of(run)}

    (tmp_path / "flawed").unlink()
    with driving(tmp_path, "resume", run) as driver:
        code, said = driver.end()
    assert code == 0, said
    assert_same(run, truth)


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


def test_a_run_goes_on_wherever_it_is_moved_or_copied_to(truth: Path, tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "elsewhere" / "under another name"
    with driving(tmp_path, "sweep", describe(tmp_path), "--out", run) as killed:
        killed.wait_until(lambda: len(files(run)) >= 3)
        killed.kill()
    shutil.copytree(run, copy)
    run.rename(tmp_path / "gone")
    kept = trials_of(copy)
    assert len(kept) >= 3
    with driving(tmp_path, "resume", copy) as driver:
        code, said = driver.end()
    assert code == 0, said
    assert all(trial in trials_of(copy) for trial in kept), "none was trained again"
    assert_same(copy, truth)
    assert not run.exists()


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
