"""The published layout; the published definition, written a second way in pandas."""

import itertools
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import called, refused

from orchestrator.records import Choice, Goal, Range
from orchestrator.results import RunFiles, Within, best_of, frontier_of
from orchestrator.results.archive import import_archive

SPACE = {
    "learning_rate": {
        "type": "DOUBLE", "scale": "LOG_SCALE", "min_value": 1e-3, "max_value": 10
    },
    "momentum": {
        "type": "DOUBLE", "scale": "REVERSE_LOG_SCALE", "min_value": 0.0, "max_value": 0.999
    },
    "layers": {"type": "INTEGER", "scale": "LINEAR_SCALE", "min_value": 1, "max_value": 4},
    "decay": {"type": "DISCRETE", "feasible_points": [0.9, 0.99]},
}  # fmt: skip


def write_study(folder: Path, **changes: Any) -> Path:
    *_, dataset, model, optimizer, size = folder.parts
    folder.mkdir(parents=True)
    document = {
        "batch_size": int(size), "dataset": dataset, "model": model, "optimizer": optimizer,
        "early_stopping": False, "train_steps": 0, "parameter_configs": SPACE, **changes,
    }  # fmt: skip
    (folder / "study.json").write_text(json.dumps(document))
    return folder


def write_trial(study: Path, number: int, text: str | None, **changes: Any) -> Path:
    """`text` is the file of measurements; None: there is none."""
    folder = study / str(number)
    folder.mkdir()
    parameters = {"learning_rate": 0.1 * (number + 1), "momentum": 0.9}
    metadata = {"trial_id": number, "status": "COMPLETE", "steps": 100, "parameters": parameters}
    (folder / "metadata.json").write_text(json.dumps(metadata | changes))
    if text is not None:
        (folder / "measurements.csv").write_text(text)
    return folder


def test_what_can_be_used_is_used_and_the_rest_is_listed(tmp_path: Path) -> None:
    source = tmp_path / "archive"
    study = write_study(source / "mnist/simple_cnn_base/momentum/8")
    write_trial(study, 0, "step,val/error,val/loss\n30,0.1,1\n10,0.5,3\n20,0.2,2\n")
    write_trial(study, 1, "step,val/error\n10,0.4\n10,0.05\n20,nan\n")
    write_trial(study, 2, "step,val/error\n5,0.01\n", status="INFEASIBLE")
    write_trial(study, 3, "step,val/error\n5,0.01\n", status="INCOMPLETE")
    write_trial(study, 5, "")
    write_trial(study, 6, None)
    (write_trial(study, 7, "step,val/error\n1,0\n") / "metadata.json").unlink()
    write_trial(study, 11, "step,val/error\n1,0\n", trial_id=0)
    group = write_study(source / "mnist_subsets/mnist_100/fc/sgd/2")
    write_trial(group, 3, "step,val/error\n7,0.0\n")
    (source / "mnist/fc/sgd/notes/1").mkdir(parents=True)
    (source / "mnist/fc/sgd/notes/1/metadata.json").write_text("{}")
    bare = source / "mnist/fc/sgd/4"
    bare.mkdir()
    write_trial(bare, 0, "step,val/error\n9,0.0\n")

    run = RunFiles(tmp_path / "run")
    problems = dict(line.split(": ", 1) for line in import_archive(source, run))
    base = "mnist/simple_cnn_base/momentum/8"
    assert problems == {
        f"{base}/5/measurements.csv": "is empty",
        f"{base}/6/measurements.csv": "is missing",
        f"{base}/7/metadata.json": "is missing",
        f"{base}/11": "trial 0 is there twice",
        "mnist/fc/sgd/4/study.json": "is missing",
        "mnist/fc/sgd/notes/study.json": "is missing",
        "mnist/fc/sgd/notes": "is not at [GROUP/]DATASET/MODEL/OPTIMIZER/BATCH_SIZE",
    }
    assert (run.place / "problems.txt").read_text().count("\n") == len(problems)

    bare_study, study_, group_ = run.studies()
    name = (study_.workload, study_.recipe, study_.trials)
    assert name == ("mnist/simple_cnn_base", "momentum", 4)
    assert group_.workload == "mnist_subsets/mnist_100/fc"
    assert bare_study.space == {}
    assert study_.space == {
        "learning_rate": Range(low=1e-3, high=10, scale="log"),
        "momentum": Range(low=0, high=0.999, scale="reverse_log"),
        "layers": Range(low=1, high=4, integer=True),
        "decay": Choice(options=(0.9, 0.99)),
    }
    trials = run.trials(study_.key).to_pandas().set_index("trial")
    assert list(trials.index) == [0, 1, 2, 3, 5, 6]
    assert trials["status"][2] == "diverged"
    assert trials["archive_status"][3] == "INCOMPLETE"

    rows = {row.workload: row for row in frontier_of(run, [Goal.parse("val/error < 0.3")])}
    row = rows["mnist/simple_cnn_base"]
    assert (row.steps, row.trial, row.seed, row.metrics) == (10, 1, None, {"val/error": 0.05})
    assert rows["mnist_subsets/mnist_100/fc"].steps == 7
    with refused("missing-option", run.place, '--goal, such as "val/error<0.1"', "val/loss"):
        frontier_of(run)
    with refused("imported-run", run.place):
        called("resume", run.place)


def random_archive(source: Path, chance: random.Random) -> None:
    """Ties, gaps, infinities, steps out of order or there twice, missing columns, every status."""
    values = ["", "nan", "inf", "-inf", "0.1", "0.2", "0.3", "0.5"]
    for optimizer in ("sgd", "momentum"):
        for size in (1, 4):
            study = write_study(source / f"mnist/model/{optimizer}/{size}")
            for number in range(chance.randint(0, 8)):
                names = [
                    "step",
                    *chance.sample(["val/error", "val/precision"], chance.randint(1, 2)),
                ]
                lines = [",".join(names)]
                for _ in range(chance.randint(0, 12)):
                    cells = [chance.choice(values) for _ in names]
                    lines.append(",".join([str(chance.randint(0, 6)), *cells[1:]]))
                status = chance.choice(["COMPLETE"] * 3 + ["INFEASIBLE", "INCOMPLETE"])
                write_trial(study, number, "\n".join(lines) + "\n", status=status)


def sorted_by_pandas(
    source: Path, last: Callable[[int], float]
) -> dict[tuple[str, int], pd.DataFrame]:
    """Per study the measurements of the complete trials, up to the last step for its batch size,
    sorted by (step, trial)."""
    found: dict[tuple[str, int], pd.DataFrame] = {}
    for place in source.glob("*/*/*/*/study.json"):
        size, frames = int(place.parts[-2]), [pd.DataFrame({"step": [], "trial": []})]
        for folder in sorted(place.parent.glob("*/"), key=lambda each: int(each.name)):
            if json.loads((folder / "metadata.json").read_text())["status"] == "COMPLETE":
                frame = pd.read_csv(folder / "measurements.csv")
                frames.append(frame[frame["step"] <= last(size)].assign(trial=int(folder.name)))
        table = pd.concat(frames).astype(float)
        found[place.parts[-3], size] = table.sort_values(["step", "trial"], kind="stable")
    return found


def first_past(table: pd.DataFrame, goal: Goal) -> tuple[int, int] | None:
    if goal.metric not in table:
        return None
    values = table[goal.metric].replace([math.inf, -math.inf], math.nan)
    passed = table[values < goal.bound if goal.direction == "<" else values > goal.bound]
    return tuple(map(int, passed.iloc[0][["step", "trial"]])) if len(passed) else None  # type: ignore[return-value]


QUESTIONS: list[tuple[str | None, Callable[[int], float]]] = [
    (None, lambda size: math.inf),
    ("steps=3", lambda size: 3),
    ("examples=6", lambda size: math.ceil(6 / size)),
    ("epochs=1e-4", lambda size: math.ceil(5.5 / size)),
]


@pytest.mark.parametrize("seed", range(6))
def test_the_frontier_is_the_published_one(seed: int, tmp_path: Path) -> None:
    source, run = tmp_path / "archive", RunFiles(tmp_path / "run")
    random_archive(source, random.Random(seed))
    import_archive(source, run)
    tables = sorted_by_pandas(source, lambda size: math.inf)
    for asked in ("val/error < 0.2", "val/precision > 0.3", "val/error < 0.1"):
        goal = Goal.parse(asked)
        for row in frontier_of(run, [goal]):
            theirs = first_past(tables[row.recipe, row.batch_size], goal)
            assert theirs == (None if row.steps is None else (row.steps, row.trial))
            assert not row.censored


@pytest.mark.parametrize("seed", range(3))
def test_the_best_is_what_pandas_finds(seed: int, tmp_path: Path) -> None:
    source, run = tmp_path / "archive", RunFiles(tmp_path / "run")
    random_archive(source, random.Random(seed))
    import_archive(source, run)
    for (text, last), maximise in itertools.product(QUESTIONS, (False, True)):
        tables = sorted_by_pandas(source, last)
        within = None if text is None else Within.parse(text)
        for row in best_of(run, "val/error", maximise=maximise, within=[within]):
            table = tables[row.recipe, row.batch_size]
            values = table.get("val/error", pd.Series(dtype=float))
            values = values[np.isfinite(values)]
            if values.empty:
                assert (row.value, row.step, row.trial) == (None, None, None)
                continue
            best = values.max() if maximise else values.min()
            theirs = table[table["val/error"] == best].iloc[0]
            assert (row.value, row.step, row.trial) == (best, theirs["step"], theirs["trial"])
            assert row.metrics["val/error"] == best
            assert not row.censored


def test_an_import_takes_nothing_from_one_of_another_archive_that_was_killed(
    tmp_path: Path,
) -> None:
    for name, step in (("first", 10), ("second", 20)):
        study = write_study(tmp_path / name / "mnist/simple_cnn_base/momentum/8")
        write_trial(study, 0, f"step,val/error\n{step},0.1\n")
    import_archive(tmp_path / "first", RunFiles(tmp_path / "run"))
    for late in ("studies.json", "sweep.yaml"):  # which are written last
        (tmp_path / "run" / late).unlink()
    import_archive(tmp_path / "second", run := RunFiles(tmp_path / "run"))
    (row,) = frontier_of(run, [Goal.parse("val/error < 0.2")])
    assert row.steps == 20
