"""The frontier: what counts, what censors it, and how it is asked for. test_archive.py compares it
with the published definition, written a second way in pandas."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import called, ended, make_trial, refused

from orchestrator.records import EvaluationGrid, Goal, Status, Study
from orchestrator.results import (
    RunFiles,
    Within,
    best_of,
    column_of,
    frontier_of,
    outcomes_of,
    parse_goals,
    step_times,
    to_csv,
    write_frontier,
)
from orchestrator.results.export import export_compact

GRID = EvaluationGrid(spacing=0, min_gap=10)


def new_run(path: Path, *studies: Study, **sweep: object) -> RunFiles:
    run = RunFiles(path)
    run.create({"name": "x", **sweep}, studies, {})
    return run


def write_run(
    path: Path, curves: list[tuple[Status, list[float]]], goal: str, **sweep: object
) -> RunFiles:
    """A run of one study; trial i was measured every 10 steps with the values of curve i."""
    study = make_trial(goals=[goal], grid=GRID, budget_steps=50).study
    study = replace(study, trials=len(curves))
    run = new_run(path, study, **sweep)
    for index, (status, values) in enumerate(curves):
        trial = replace(make_trial(index=index), study=study)
        shown = {10 * number: value for number, value in enumerate(values)}
        run.write(ended(trial, status, shown, error="boom"))
    return run


EARLY_AND_LATE: list[tuple[Status, list[float]]] = [
    ("reached", [0.5, 0.3, 0.15]),
    ("exhausted", [0.5, 0.4, 0.4, 0.4, 0.4, 0.05]),
]


def test_status_counts_the_trials_that_replace_diverged_ones(tmp_path: Path) -> None:
    ends: list[tuple[Status, list[float]]] = [("diverged", [0.9]), ("exhausted", [0.9] * 6)]
    run = write_run(tmp_path, [*ends, ends[1]], "val/error < 0.2")
    (study,) = run.studies()
    for finished in (3, 4):
        found = json.loads(called("status", tmp_path, "--json"))
        assert (found["finished"], found["planned"]) == (finished, 4)
        last = replace(make_trial(index=3), study=study)
        run.write(ended(last, "exhausted", {0: 0.9, 50: 0.9}))


def test_status_does_not_count_a_trial_that_was_set_aside_as_finished(tmp_path: Path) -> None:
    ends: list[tuple[Status, list[float]]] = [("exhausted", [0.9] * 6), ("paused", [0.9])]
    run = write_run(tmp_path, ends, "val/error < 0.2")
    found = json.loads(called("status", tmp_path, "--json"))
    assert (found["finished"], found["planned"]) == (1, 2)
    run.put_together(run.studies()[0].key, finished=True)
    found = json.loads(called("status", tmp_path, "--json"))
    assert (found["finished"], found["planned"]) == (2, 2)


def test_a_stricter_goal_is_censored_where_trials_stopped_early(tmp_path: Path) -> None:
    run = write_run(tmp_path, EARLY_AND_LATE, "val/error < 0.2")
    asked = [Goal.parse(f"val/error < {bound}") for bound in (0.35, 0.2, 0.1)]
    rows = frontier_of(run, asked)
    assert [(row.steps, row.trial, row.censored) for row in rows] == [
        (10, 0, False),
        (20, 0, False),
        # Trial 0 stopped at step 20 and might have passed 0.1 before trial 1 did at 50.
        (50, 1, True),
    ]


@pytest.mark.parametrize(("goal", "best"), [("val/error > 0.9", 0.7), ("val/error < 0.1", 0.3)])
def test_the_best_lies_where_the_goal_is(goal: str, best: float, tmp_path: Path) -> None:
    run = write_run(tmp_path, [("exhausted", [0.5, 0.3]), ("exhausted", [0.5, 0.7])], goal)
    assert best_of(run, "val/error")[0].value == best


def test_what_comes_after_a_budget_is_left_out_and_censors_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path, EARLY_AND_LATE, "val/error < 0.2")
    asked = [Within.parse(text) for text in ("steps=20", "steps=19", "examples=640", "steps=30")]
    bests = best_of(run, "val/error", within=[*asked, None])
    assert [(row.value, row.step, row.trial, row.censored) for row in bests] == [
        (0.15, 20, 0, False),
        (0.3, 10, 0, False),
        (0.15, 20, 0, False),  # batch size 32
        # Trial 0 might have been better yet at 30.
        (0.15, 20, 0, True),
        (0.05, 50, 1, True),
    ]
    assert [row.trained_enough for row in bests] == [True] * 5
    assert not best_of(run, "val/error", within=[Within.parse("steps=51")])[0].trained_enough
    with refused("unknown-epoch", "digits/mlp", "examples=N"):
        best_of(run, "val/error", within=[Within.parse("epochs=1")])


@pytest.mark.parametrize("text", ["steps=1234567", "epochs=0.1", "examples=71638836"])
def test_budgets_are_named_to_the_last_digit(text: str) -> None:
    assert str(Within.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "10", "steps", "steps=", "steps=-1", "hours=3", "epochs=inf", "epochs=1e300"]
)
def test_other_budgets_are_refused(text: str) -> None:
    with refused("wrong-value", repr(text), "epochs=N"):
        Within.parse(text)


def test_leaders_are_those_whose_ranks_are_certain(tmp_path: Path) -> None:
    curves: list[tuple[Status, list[float]]] = [
        ("reached", [0.5, 0.5, 0.5, 0.1]),
        ("diverged", [0.5, 0.1, math.nan]),
        ("dominated", [0.5, 0.5, 0.5]),  # may pass at 30, and would lose the tie with trial 0
        ("failed", []),
        ("reached", [0.5, 0.5, 0.5, 0.1]),  # loses the tie with trial 2
        ("exhausted", [0.5] * 6),
    ]
    (row,) = frontier_of(write_run(tmp_path, curves, "val/error < 0.2"))
    assert [(one.trial, one.steps, one.resolution) for one in row.leaders] == [
        (1, 10, 10), (0, 30, 10),
    ]  # fmt: skip
    assert row.trials_used == 5
    assert dict(row.trials)["reached"] == 2
    assert len(asked("frontier", tmp_path)[0]["leaders"]) == 2


def test_unreached_failed_and_missing_are_named(tmp_path: Path) -> None:
    run = write_run(tmp_path, [("failed", []), ("exhausted", [0.5] * 6)], "val/error < 0.2")
    max(tmp_path.glob("trials/**/trials-*.parquet")).unlink()
    (row,) = frontier_of(run)
    assert not row.reached
    text = "; ".join(row.warnings)
    assert "1 of 2 trials have finished" in text
    assert "1 of 2 trials failed: boom" in text
    assert "the best measured" not in text
    (study,) = run.studies()
    run.create(run.sweep(), [replace(study, trials=1)], {})
    for index in (1, 2):
        trial = replace(make_trial(index=index), study=study)
        run.write(ended(trial, "diverged", {0: math.nan}))
    assert "1 of 3 trials failed: boom" in frontier_of(run)[0].warnings


@pytest.mark.parametrize("error", ["", " \n", None])
def test_an_error_may_have_no_text(error: str | None, tmp_path: Path) -> None:
    own = make_trial(goals=["val/error < 0.2"])
    run = new_run(tmp_path / "run", own.study)
    run.write(ended(own, "failed", {}, error=error))
    assert "trials failed: no reason given" in "; ".join(frontier_of(run)[0].warnings)
    export_compact(run, tmp_path / "compact")


def test_repeats_answer_before_the_trial_that_they_repeat_has_ended(tmp_path: Path) -> None:
    own = make_trial(goals=["val/error < 0.2"])
    own = replace(own, study=replace(own.study, trials=1, repeats=2, space=own.params))
    run = new_run(tmp_path, own.study)
    for repeat in (1, 2):
        run.write(ended(replace(own, repeat=repeat), "reached", {10 * repeat: 0.1}))
    (row,) = frontier_of(run)
    assert row.repeats is not None
    assert (row.repeats.steps, row.repeats.params, row.finished) == ((10, 20), own.params, False)


def test_only_measurements_of_its_metric_are_about_a_goal(tmp_path: Path) -> None:
    """Between them, a training that reports often may have measured something else."""
    own = make_trial(goals=["val/error < 0.2"])
    own = replace(own, study=replace(own.study, trials=3, repeats=2))
    run = new_run(tmp_path / "run", own.study)
    for index, repeat in ((0, 0), (1, 0), (2, 0), (0, 1), (0, 2)):
        error = {10: 0.3, 30: 0.3 - 0.2 / 3**index, 50: 0.1}
        trial = replace(own, index=index, repeat=repeat)
        one = ended(trial, "reached", dict.fromkeys(range(10, 60, 5), 1) | error)
        measured = (
            each if each.step in error else replace(each, metrics={"batch/loss": 1})
            for each in one.measurements
        )
        run.write(replace(one, measurements=tuple(measured)))
    export_compact(run, tmp_path / "compact")
    for each in (run, RunFiles(tmp_path / "compact")):
        (row,) = frontier_of(each)
        assert [(one.steps, one.resolution) for one in row.leaders] == [(30, 20)] + [(50, 20)] * 2
        assert row.repeats is not None
        assert (row.repeats.steps, row.repeats.resolution) == ((30, 30), 20)


def test_files_hold_the_same_answer(tmp_path: Path) -> None:
    run = write_run(tmp_path, [("exhausted", [0.5, 0.1, 0.1, 0.1, 0.1, 0.1])], "val/error < 0.2")
    rows = frontier_of(run)
    write_frontier(run, rows)
    from_csv = pd.read_csv(tmp_path / "frontier.csv")
    from_parquet = pd.read_parquet(tmp_path / "frontier.parquet")
    assert from_csv.loc[0, "steps"] == from_parquet.loc[0, "steps"] == rows[0].steps == 10
    assert json.loads(from_csv.loc[0, "params"]) == {"learning_rate": 0.1}
    assert "seconds" not in to_csv(rows)


def test_the_commands_answer_the_same_questions(tmp_path: Path) -> None:
    write_run(
        tmp_path,
        [("exhausted", [0.5, 0.3, 0.15, 0.4, 0.4, 0.4]), ("exhausted", [0.5] * 5 + [0.05])],
        "val/error < 0.1",
    )
    (row,) = asked("frontier", tmp_path, "--goal=val/error<0.2")
    assert (row["steps"], row["trial"], row["trials_used"]) == (20, 0, 2)
    budgets = ("--within=steps=20", "--within=examples=1600")
    first, second = asked("best", tmp_path, "val/error", *budgets)
    assert (first["value"], first["trial"]) == (0.15, 0)
    assert (second["value"], second["trial"], second["step"]) == (0.05, 1, 50)
    told = called("best", tmp_path, "val/error", "--within=steps=1e6", "--within=steps=2e6")
    assert [*re.findall(r"within (\S+?)[. ]", told)] == ["steps=1000000", "steps=2000000"]
    (row,) = asked("best", tmp_path, "val/error", "--maximise")
    assert row["value"] == 0.5
    for mistyped in (("best", tmp_path, "val/eror"), ("frontier", tmp_path, "--goal=val/eror<1")):
        with refused("unknown-name", "'val/eror'", "'val/error'"):
            asked(*mistyped)


def asked(*arguments: object) -> Any:
    return json.loads(called(*arguments, "--json"))


def test_the_outcome_of_every_trial(tmp_path: Path) -> None:
    curves: list[tuple[Status, list[float]]] = [
        ("exhausted", [0.5, 0.3, 0.4, 0.1, 0.1, 0.1]),
        ("diverged", [0.5, math.nan]),
        ("failed", [0.1]),
        ("reached", [0.5, 0.15]),
    ]
    run = write_run(tmp_path, curves, "val/error < 0.2")
    (study,) = run.studies()
    table = outcomes_of(run, study, Goal.parse("val/error < 0.2"))
    assert table["steps_to_goal"].to_pylist() == [30, None, None, 10]
    assert table["counted"].to_pylist() == [True, True, False, True]
    assert table["status"].to_pylist() == ["exhausted", "diverged", "failed", "reached"]
    assert table["best"].to_pylist() == [0.1, 0.5, 0.1, 0.15]
    highest = outcomes_of(run, study, Goal.parse("val/error > 0.9"))
    assert highest["best"].to_pylist() == [0.5, 0.5, 0.1, 0.5]
    assert table[column_of("learning_rate")].to_pylist() == [0.1] * 4


def test_a_metaparameter_may_be_called_as_a_column_is(tmp_path: Path) -> None:
    study = make_trial().study
    run = new_run(tmp_path, study)
    params = {"steps": 0.5, "status": "warm", "best": 1.0}
    run.write(ended(replace(make_trial(), study=study, params=params), "exhausted", steps=7))
    (row,) = outcomes_of(run, study, Goal.parse("val/error < 0.2")).to_pylist()
    assert (row["steps"], row["status"]) == (7, "exhausted")
    assert {name: row[column_of(name)] for name in params} == params


@pytest.mark.parametrize("at_goal", [True, False])
def test_status_tells_the_steps_to_the_goal(at_goal: bool, tmp_path: Path) -> None:
    """And not to the end of what is trained to its budget."""
    goals = ["val/error < 0.3", "val/error < 0.2"]
    own = make_trial(goals=goals, budget_steps=50, stop_at_goal=at_goal, stop_dominated=at_goal)
    run = new_run(tmp_path, own.study)
    for index, end in enumerate((40, 30)):
        shown = {0: 0.9, 10: 0.25, end: 0.1, **({} if at_goal else {50: 0.1})}
        run.write(ended(replace(own, index=index), "reached", shown))
    run.write(ended(replace(own, repeat=1), "reached", {40: 0.1}))
    with run.locked():
        told = asked("status", tmp_path)
    (study,) = told["studies"]
    assert (study["best_steps"], study["finished"], study["repeats"]) == (30, 2, 1)
    assert (told["running"], asked("status", tmp_path)["running"]) == (True, False)


def test_options_of_mixed_kinds_become_text(tmp_path: Path) -> None:
    study = make_trial().study
    run = new_run(tmp_path, study)
    for index, value in enumerate((0.5, "auto", True)):
        run.write(
            ended(replace(make_trial(index=index), study=study, params={"clip": value}), "failed")
        )
    table = outcomes_of(run, study, Goal.parse("val/error < 0.2"))
    assert table[column_of("clip")].to_pylist() == ["0.5", "auto", "True"]


def test_step_times_are_those_of_trials_that_trained_for_long(tmp_path: Path) -> None:
    study = make_trial().study
    run = new_run(tmp_path, study)
    # The first steps of a process are slow, and most trials are short.
    trained = [(1, 9.0), (2, 9.0), (100, 1.0), (90, 0.9), (40, 0.8), (0, 0.0)]
    for index, (steps, seconds) in enumerate(trained):
        trial = replace(make_trial(index=index), study=study)
        run.write(ended(trial, "exhausted", steps=steps, seconds=seconds))
    (time,) = step_times(run, [study])
    assert time.seconds == pytest.approx(0.01)
    assert (time.batch_size, time.ranks) == (study.batch_size, 1)


def test_a_goal_may_be_asked_of_some_workloads_only(tmp_path: Path) -> None:
    study = make_trial(goals=["val/error < 0.5"]).study
    studies = [replace(study, workload=name) for name in ("mnist/a", "mine.py:B", "mnist/c?n=3")]
    run = new_run(tmp_path, *studies)
    for one in studies:
        run.write(ended(replace(make_trial(), study=one), "exhausted", {7: 0.1}, steps=60))

    def reached(*texts: str) -> list[tuple[str, str, bool]]:
        return [(r.workload, r.goal, r.reached) for r in frontier_of(run, parse_goals(texts))]

    texts = ("mnist/*: val/error < 0.2", "mine.py:B:val/error<0.05", "mnist/a: val/error<0.3")
    assert reached(*texts) == [
        ("mnist/a", "val/error < 0.2", True),
        ("mnist/a", "val/error < 0.3", True),
        ("mine.py:B", "val/error < 0.05", False),
        ("mnist/c?n=3", "val/error < 0.2", True),
    ]
    assert len(reached("mnist/c?n=3: val/error < 0.2")) == 1
    with refused("unknown-name", "'minst/a'", "'mnist/a'"):
        reached("minst/a: val/error < 0.2")
    with refused("given-twice"):
        reached("val/error < 0.2", "*: val/error<0.2")


@pytest.mark.parametrize(
    ("status", "reached_at", "starves"),
    [("exhausted", 50, True), ("exhausted", 12, False), ("failed", 50, False)],
)
def test_a_budget_below_what_larger_batches_needed_is_told(
    status: Status, reached_at: int, starves: bool, tmp_path: Path
) -> None:
    """100 steps of 8 examples, where 64 at once took so many steps."""
    own = make_trial(goals=["val/error < 0.1"], grid=EvaluationGrid(spacing=0, min_gap=1))
    small, large = (replace(own.study, batch_size=size) for size in (8, 64))
    run = new_run(tmp_path, small, large)
    run.write(ended(replace(own, study=small), status, {100: 0.2}))
    run.write(ended(replace(own, study=large), "reached", {reached_at: 0.05}))
    of_small, of_large = ("; ".join(row.warnings) for row in frontier_of(run))
    told = "its budget of 800 examples is less than the 3,200 that batch size 64 needed"
    assert (told in of_small) == starves
    assert not of_large
