"""Sweeps through the real path: Ray, warm gangs, Parquet, frontier, report."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, made, orchestrate, train_all
from driving import trained_alone
from test_failures import ON_RANK_1

from orchestrator.cluster.connect import connect
from orchestrator.cluster.sweeps import train_apart
from orchestrator.planning.machines import Cluster
from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Sweep
from orchestrator.records import SweepFailed
from orchestrator.results import FrontierRow, RunFiles, frontier_of

pytestmark = pytest.mark.dear


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with connect(None, tmp_path_factory.mktemp("ray") / "log.txt") as cluster:
        yield cluster


def sweep_into(path: Path, cluster: Cluster, document: dict[str, Any]) -> list[FrontierRow]:
    """Runs a sweep on Ray, from this process, and returns its frontier."""
    planned, run = plan(Sweep.model_validate(document)), RunFiles(path)
    assert train_apart(run, planned.sweep, planned.studies, cluster)
    return frontier_of(run)


@pytest.mark.slow
def test_a_rank_that_fails_alone_says_why_and_hangs_nobody(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(ON_RANK_1)
    document = {
        **TINY,
        "workloads": [f"{tmp_path}/mine.py:Flawed"],
        "batch_sizes": [64],
        "search": {"trials": 1},
        "resources": {"examples_per_device": 32, "max_devices": 2},
        "faults": {"max_failures": 0},
    }
    with pytest.raises(SweepFailed, match="not divisible"):
        sweep_into(tmp_path / "run", cluster, document)


@pytest.mark.slow
def test_warm_gangs_of_two_ranks_find_the_same(cluster: Cluster, tmp_path: Path) -> None:
    shared = {"examples_per_device": 32, "max_devices": 2}
    document = {**TINY, "recipes": [{"name": "sgd", "optimizer": "sgd"}], "resources": shared}
    rows = sweep_into(tmp_path / "together", cluster, document)
    alone, planned = made(tmp_path / "alone", Sweep.model_validate({**document, "resources": {}}))
    train_all(alone, planned)
    expected = [(row.steps, row.trial) for row in frontier_of(alone)]
    assert [(row.steps, row.trial) for row in rows] == expected
    study = plan(Sweep.model_validate(document)).studies[0]
    assert RunFiles(tmp_path / "together").trials(study.key)["ranks"].to_pylist() == [2, 2, 2]


def test_the_command_from_sweep_to_report(sweep_file: Callable[..., Path], tmp_path: Path) -> None:
    first = orchestrate("sweep", sweep_file(), "--out", tmp_path / "a", "--json", "--ray")
    assert first.returncode == 0, first.stderr
    rows = json.loads(first.stdout)
    assert [row["batch_size"] for row in rows] == [64, 256]
    assert all(row["reached"] and row["trials"] for row in rows)
    assert (tmp_path / "a" / "report.html").stat().st_size > 10**6

    again = orchestrate("sweep", sweep_file(), "--out", tmp_path / "a")
    assert again.returncode == 0
    assert "nothing to train" in again.stderr

    alone = trained_alone(sweep_file())
    assert (tmp_path / "a/frontier.csv").read_bytes() == (alone / "frontier.csv").read_bytes()

    status = json.loads(orchestrate("status", tmp_path / "a", "--json").stdout)
    assert (status["planned"], status["finished"]) == (6, 6)
