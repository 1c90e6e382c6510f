"""What is headlined is the median of the winner's repeats, free of the luck that made it win."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import make_trial, train_all
from test_frontier import new_run
from test_growth import SweepFile, made
from test_raising import ended
from test_report import ROW, ROWS, UNREACHED

from orchestrator.analysis import Estimate, advice, costs, points_of, scalings, sentence
from orchestrator.analysis.pairs import Answers, sides_of
from orchestrator.analysis.words import steps_of
from orchestrator.records import EvaluationGrid, Goal, Range, Status, Study
from orchestrator.report import Panel
from orchestrator.report.answer import steps_to_goal
from orchestrator.report.numbers import table_of_ratios
from orchestrator.results import FrontierRow, frontier_of, to_csv
from orchestrator.results.remarks import still_warming
from orchestrator.results.repeats import WinnerRepeats


def repeated(row: FrontierRow, median: float | None, **changes: Any) -> FrontierRow:
    settings: dict[str, Any] = {
        "count": 5, "reached": 5, "low": 492, "high": 574, "confidence": 0.94, "resolution": 16,
    }  # fmt: skip
    return replace(row, repeats=WinnerRepeats(median=median, **{**settings, **changes}))


LUCKY = repeated(replace(ROW, recipe="lucky", batch_size=64, steps=328), 530)
SOLID = repeated(replace(ROW, recipe="solid", batch_size=64, steps=410), 420, low=410, high=433)


def test_a_lucky_winner_is_not_ahead_of_a_better_recipe() -> None:
    rows = [LUCKY, SOLID]
    every = [replace(row, batch_size=size) for row in rows for size in (8, 16, 32, 64)]
    assert {point.recipe: point.steps for point in points_of(rows)} == {"lucky": 530, "solid": 420}
    found = advice(costs(every))
    assert (found.fastest.recipe, found.fastest.steps) == ("solid", 420)
    assert ">1.26<" in table_of_ratios(rows)
    lines = {line.name: line for line in steps_to_goal(rows).as_plotly().data}
    assert list(lines["lucky"].y) == [530]
    assert lines["lucky"].error_y.arrayminus[0] == 16  # from the measurement before
    assert "328 steps" in lines["lucky"].hovertext[0]
    assert "530 steps, the median of 5 repeats (492 to 574, 94%)" in lines["lucky"].hovertext[0]


def test_a_curve_has_medians_or_minima_and_says_which() -> None:
    curve = [repeated(row, 2 * (row.steps or 0)) for row in ROWS]
    (of_medians,) = scalings(curve)
    (of_minima,) = scalings([*curve[:-1], ROWS[-1]])
    assert [point.steps for point in points_of([*curve[:-1], ROWS[-1]])] == [r.steps for r in ROWS]
    assert "Steps are medians of repeats." in sentence(of_medians)
    assert "Steps are minima over trials." in sentence(of_minima)
    assert scalings([*curve, UNREACHED])[0].of_medians, "what no trial reached has none to repeat"
    beside = table_of_ratios([*curve, *(replace(row, recipe="b") for row in ROWS)])
    assert "but the curves of b show minima over trials, which are too low" in beside


def test_half_of_the_repeats_must_reach_it() -> None:
    never = [repeated(row, None, reached=2, high=None) for row in ROWS]
    assert points_of(never) == []
    assert costs(never) == []
    (scaling,) = scalings(never)
    assert scaling.verdict == "the goal was never reached, in the median of repeats"


def test_a_recipe_without_a_search_is_trained_with_other_seeds_and_no_more(
    sweep_file: SweepFile, tmp_path: Path
) -> None:
    """Its best seed would win against the best of as many points of a search."""
    rate = {"rule": "linear", "base": 0.05, "at_batch_size": 64}
    rule = {"name": "rule", "optimizer": "sgd", "space": {"learning_rate": rate}}
    file = sweep_file(recipes=["sgd", rule], search={"trials": 4})
    run, planned = made(tmp_path / "run", file, "repeats=2", "batch_sizes=[64]")
    assert [study.trials for study in planned.studies] == [4, 1]
    assert train_all(run, planned) == 4 + 2 + 1 + 2
    searched, ruled = frontier_of(run)
    assert (searched.repeats.count, ruled.repeats.count) == (2, 3)  # type: ignore[union-attr]
    goal, steps = Goal.parse(ruled.goal), {}
    own = [{**row, "repeat": 0} for row in run.curve(ruled.key, 0).to_pylist()]
    for row in [*run.repeats.measurements(ruled.key).to_pylist(), *own]:
        if goal.passed(row["val/error"]):
            steps.setdefault(row["repeat"], row["step"])
    assert ruled.repeats.median == sorted(steps.values())[1]  # type: ignore[union-attr]


def test_where_it_diverges_it_counts_as_never_and_is_not_launched_again(
    sweep_file: SweepFile, tmp_path: Path
) -> None:
    wild = {"name": "wild", "optimizer": "sgd", "space": {"learning_rate": 1e6}}
    file = sweep_file(recipes=[wild], search={"trials": 8})
    run, planned = made(tmp_path / "run", file, "repeats=2", "batch_sizes=[64]")
    assert train_all(run, planned) == 3
    (row,) = frontier_of(run)
    assert not row.reached
    assert (row.repeats.count, row.repeats.reached, row.repeats.median) == (3, 0, None)  # type: ignore[union-attr]
    assert "launches" not in " ".join(row.warnings)


@pytest.mark.parametrize(("lucky", "better"), [(0, 1), (1, 0)])
def test_half_of_the_repeats_choose_the_point_that_the_others_tell_of(
    tmp_path: Path, lucky: int, better: int
) -> None:
    """One trial won by luck. The other has the better median in the first half of the repeats, the
    lucky one in the second, which is too late to choose it."""
    own = make_trial(goals=["val/error < 0.5"], grid=EvaluationGrid(spacing=0, min_gap=10))
    space = {"learning_rate": Range(low=0.1, high=1)}
    study = replace(
        own.study, trials=2, repeats=6, repeat_best=2, keep=2, space=space, budget_steps=200
    )
    run = new_run(tmp_path, study)
    steps = {lucky: [10, 90, 80, 70, 20, 20, 20], better: [40, 50, 60, 60, 100, 110, 120]}
    for index, of_repeats in steps.items():
        for repeat, last in enumerate(of_repeats):
            shown = {0: 1.0, last - 10: 1.0, last: 0.1}
            found = ended(study, index, "reached", shown, repeat)
            params = {"learning_rate": 0.1 + index}
            run.write(replace(found, trial=replace(found.trial, params=params)))
    (row,) = frontier_of(run)
    assert (row.steps, row.trial, row.finished) == (10, lucky, True)
    assert (row.repeats.trial, row.repeats.count, row.repeats.median) == (better, 3, 110)
    said = f"the fewest steps are of trial {lucky}, by luck: learning_rate {0.1 + lucky:g}"
    assert row.remarks()[0] == said
    assert row.answering == (better, {"learning_rate": 0.1 + better})
    assert points_of([row])[0].steps == 110
    assert "repeats_trial" in to_csv([row])


@pytest.mark.parametrize("status", ["reached", "exhausted", "failed"])
def test_a_repeat_counts_as_far_as_it_tells(status: Status, tmp_path: Path) -> None:
    """Ended at a looser goal it says nothing of this one, and failed it is none."""
    strict = Goal.parse("val/error < 0.1")
    own = make_trial(goals=["val/error < 0.5"], grid=EvaluationGrid(spacing=0, min_gap=10))
    study = replace(own.study, repeats=2, space={"learning_rate": Range(low=0.1, high=1)})
    run = new_run(tmp_path, study)
    for repeat, value, how in [(0, 0.05, "reached"), (1, 0.05, "reached"), (2, 0.4, status)]:
        run.write(ended(study, 0, how, {0: 1.0, 30: value}, repeat))  # type: ignore[arg-type]
    (row,) = frontier_of(run, [strict])
    assert row.steps == 30
    if status == "reached":
        assert row.repeats is None
        return
    count = 2 if status == "exhausted" else 1
    assert (row.repeats.count, row.repeats.reached) == (count, 1)
    assert row.repeats.median == (None if count == 2 else 30)
    (loose,) = frontier_of(run)
    assert loose.repeats.reached == count


def test_what_is_too_little_is_drawn_and_not_fitted() -> None:
    short = replace(ROWS[-1], batch_size=2 * ROWS[-1].batch_size, steps=9)
    (without,), (found,) = scalings(ROWS), scalings([*ROWS, short])
    assert found.critical_batch_size == without.critical_batch_size
    assert sentence(found).endswith(f"Left out: {short.batch_size:,} (fewer than 10 steps).")
    drawn = steps_to_goal([*ROWS, short]).as_plotly().data
    (line,) = (line for line in drawn if line.name == ROWS[0].recipe)
    assert line.y[-1] == 9


def test_a_goal_that_is_passed_before_the_first_step_was_reached() -> None:
    rows = [replace(row, steps=0, resolution=0) for row in ROWS]
    (*_, crosses) = steps_to_goal(rows).as_plotly().data
    assert "the goal was passed before the first step" in crosses.hovertext[0]
    panel = Panel(workload="w", goal=Goal.parse(ROW.goal), rows=rows)
    assert panel.least == "The goal was passed before the first step."
    side = sides_of(Answers(rows=rows), {})[rows[0].key, rows[0].goal]
    assert side.estimate == Estimate(value=0, low=0, high=0)


def test_a_study_that_has_not_finished_is_not_yet_there() -> None:
    late = replace(UNREACHED, recipe=ROWS[0].recipe, batch_size=4096, finished=False)
    assert (steps_of(late), steps_of(replace(late, finished=True))) == ("not yet", "not reached")
    (found,) = scalings([*ROWS, late])
    assert sentence(found).endswith("Left out: 4,096 (not finished yet).")
    (nothing,) = scalings([late])
    assert sentence(nothing) == (
        f"{late.recipe}: too few batch sizes to tell where the curve bends: 0 of 1 can be used, "
        "4 are needed. Left out: 4,096 (not finished yet)."
    )


@pytest.mark.parametrize(
    ("statuses", "settled", "finished"),
    [
        (["exhausted"] * 2, False, False),
        (["exhausted"] * 3, False, True),
        (["exhausted", "exhausted", "paused"], False, False),
        (["exhausted", "exhausted", "paused"], True, True),
        # Whether another point must take its place can't be told from the rows alone.
        (["exhausted", "reached", "diverged"], False, False),
        (["exhausted", "reached", "diverged"], True, True),
        (["exhausted", "reached", "failed"], False, True),
        (["diverged"] * 9, False, True),
    ],
)
def test_whether_a_study_has_finished_is_told_by_its_files(
    statuses: list[Status], settled: bool, finished: bool, tmp_path: Path
) -> None:
    own = make_trial(goals=["val/error < 0.1"], grid=EvaluationGrid(spacing=0, min_gap=10))
    study = replace(own.study, trials=3, space={"learning_rate": Range(low=0.1, high=1)})
    study = replace(study, budget_steps=30)
    run = new_run(tmp_path, study)
    for index, status in enumerate(statuses):
        run.write(ended(study, index, status, {30: 0.05 if status == "reached" else 0.5}))
    run.put_together(study.key, finished=settled)
    (row,) = frontier_of(run)
    assert row.finished == finished
    # The same study with more to train, and with one that was written since.
    more = replace(study, trials=5)
    run.create({"name": "x"}, [more], {})
    (grown,) = frontier_of(run)
    assert not grown.finished
    (first,) = frontier_of(run, first=1)
    assert first.finished == ("paused" not in statuses or settled)


def test_a_point_that_warmed_up_for_most_of_its_steps_is_told() -> None:
    study = Study(
        workload="w", recipe="r", optimizer="sgd", batch_size=8, goals=(), budget_steps=200,
        grid=EvaluationGrid(spacing=0.1, min_gap=1), space={}, trials=1, train_size=80,
    )  # fmt: skip
    said = "its warmup of 100 steps is more than half of its 150 steps"
    for params in ({"warmup_steps": 100}, {"warmup_fraction": 0.5}, {"warmup_epochs": 10}):
        assert still_warming(study, params, 150) == (said,)
        assert still_warming(study, params, 200) == ()
    assert still_warming(study, {"learning_rate": 0.1}, 1) == ()
