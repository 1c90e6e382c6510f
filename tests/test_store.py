import math
from pathlib import Path

import pandas as pd
import pytest
from conftest import make_trial

from orchestrator.records import BadInput, FinishedTrial, Measurement, Outcome, Range
from orchestrator.results import Run


def finished(index: int, *losses: float, status: str = "exhausted") -> FinishedTrial:
    measurements = tuple(
        Measurement(step=10 * i, seconds=0.1 * i, metrics={"val/loss": loss})
        for i, loss in enumerate(losses)
    )
    outcome = Outcome(status=status, steps=10 * len(losses), seconds=1.0)  # type: ignore[arg-type]
    return FinishedTrial(trial=make_trial(index=index), outcome=outcome, measurements=measurements)


KEY = make_trial().study.key


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write(finished(1, 2.0, math.nan, status="diverged"))
    run.write(finished(0, 3.0, 1.0))
    assert run.trials(KEY)["status"].to_pylist() == ["exhausted", "diverged"]
    assert run.trials(KEY)["params"].to_pylist() == ['{"learning_rate": 0.1}'] * 2
    table = run.measurements(KEY)
    assert table["trial"].to_pylist() == [0, 0, 1, 1]
    assert table["val/loss"].to_pylist()[:3] == [3.0, 1.0, 2.0]
    assert math.isnan(table["val/loss"].to_pylist()[3])


def test_pandas_reads_a_run_without_us(tmp_path: Path) -> None:
    Run(tmp_path).write(finished(0, 3.0, 1.0))
    table = pd.read_parquet(tmp_path / "measurements", partitioning="hive")
    assert set(table["workload"]) == {"digits/mlp"}
    assert set(table["batch_size"].astype(int)) == {32}
    assert list(table["val/loss"]) == [3.0, 1.0]


def test_measurements_without_a_trial_row_do_not_count(tmp_path: Path) -> None:
    """A writer that was killed in between."""
    run = Run(tmp_path)
    run.write(finished(0, 3.0))
    run.write(finished(1, 3.0))
    next(tmp_path.glob("trials/**/trial-00001.parquet")).unlink()
    next(tmp_path.glob("trials/**/")).joinpath(".trial-00002.parquet.77").write_bytes(b"half")
    assert set(run.measurements(KEY)["trial"].to_pylist()) == {0}
    assert run.trials(KEY).num_rows == 1


def test_metrics_may_appear_later(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write(finished(0, 3.0))
    later = Measurement(step=0, seconds=0.0, metrics={"val/loss": 1.0, "test/loss": 2.0})
    outcome = Outcome(status="exhausted", steps=0, seconds=0.0)
    run.write(FinishedTrial(trial=make_trial(index=1), outcome=outcome, measurements=(later,)))
    assert run.measurements(KEY)["test/loss"].to_pylist() == [None, 2.0]


def test_studies_survive_the_way_to_disk(tmp_path: Path) -> None:
    from dataclasses import replace

    space = {"learning_rate": Range(low=1e-3, high=1, scale="log"), "momentum": 0.9}
    study = replace(make_trial(goals=["val/loss < 1"]).study, space=space)
    Run(tmp_path).create({"name": "x"}, [study], {})
    assert Run.open(tmp_path).studies() == [study]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"sweep\.yaml"):
        Run.open(tmp_path)
