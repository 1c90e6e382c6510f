"""What is headlined is the median of the winner's repeats, free of the luck that made it win."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import make_trial
from test_frontier import new_run
from test_raising import ended
from test_report import ROW, ROWS, UNREACHED

from orchestrator.analysis import Estimate, scalings, sentence
from orchestrator.analysis.cost import advice, costs
from orchestrator.analysis.pairs import Answers, sides_of
from orchestrator.analysis.points import beside_minima, points_of
from orchestrator.analysis.words import steps_of
from orchestrator.records import EvaluationGrid, Goal, Range, Status
from orchestrator.records.studies import Program
from orchestrator.report.answer import steps_to_goal
from orchestrator.report.content import Panel
from orchestrator.results import FrontierRow, frontier_of, to_csv
from orchestrator.results.repeats import WinnerRepeats

EVERY_TEN = EvaluationGrid(spacing=0, min_gap=10)
RATES = {"learning_rate": Range(low=0.1, high=1)}


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
    lines = {line.name: line for line in steps_to_goal(rows).as_plotly().data}
    assert list(lines["lucky"].y) == [530]
    assert lines["lucky"].error_y.arrayminus[0] == 0  # nothing is known of luck
    assert "328 steps" in lines["lucky"].hovertext[0]


def test_hovering_names_the_metaparameters_of_the_point_that_is_drawn() -> None:
    again = {"trial": 7, "params": {"learning_rate": 0.75}}
    row = repeated(replace(ROW, params={"learning_rate": 0.25}), 530, **again)
    (text,) = steps_to_goal([row]).data[-1]["hovertext"]
    assert "of trial 7<br>learning_rate = 0.75<br>1,024 steps" in text
    assert "0.25" not in text


def test_a_curve_has_medians_or_minima_and_says_which() -> None:
    curve = [repeated(row, 2 * (row.steps or 0)) for row in ROWS]
    (of_medians,) = scalings(curve)
    (of_minima,) = scalings([*curve[:-1], ROWS[-1]])
    assert [point.steps for point in points_of([*curve[:-1], ROWS[-1]])] == [r.steps for r in ROWS]
    assert "Steps are medians of repeats." in sentence(of_medians)
    assert "Steps are minima over trials." in sentence(of_minima)
    assert scalings([*curve, UNREACHED])[0].of_medians, "what no trial reached has none to repeat"
    beside = beside_minima({"a": curve, "b": ROWS})
    assert "but the curves of b show minima over trials, which are too low" in beside


def test_half_of_the_repeats_must_reach_it() -> None:
    never = [repeated(row, None, reached=2, high=None) for row in ROWS]
    assert points_of(never) == []
    assert costs(never) == []
    (scaling,) = scalings(never)
    assert scaling.verdict == "the goal was never reached, in the median of repeats"


@pytest.mark.parametrize(("value", "reached"), [(0.1, 3), (math.nan, 0)])
def test_the_trial_of_a_recipe_without_a_search_is_a_repeat_itself(
    value: float, reached: int, tmp_path: Path
) -> None:
    """Its best seed would win against the best of as many points of a search. Where it diverges,
    it counts as never."""
    study = make_trial(goals=["val/error < 0.5"], grid=EVERY_TEN, repeats=2).study
    run = new_run(tmp_path, study)
    for repeat, last in enumerate((40, 20, 30)):
        status: Status = "reached" if reached else "diverged"
        run.write(ended(study, 0, status, {0: 1.0, last: value}, repeat))
    (row,) = frontier_of(run)
    assert row.reached == bool(reached)
    assert (row.repeats.count, row.repeats.reached) == (3, reached)
    assert row.repeats.median == (30 if reached else None)
    assert "launches" not in " ".join(row.warnings)


@pytest.mark.parametrize(("lucky", "better"), [(0, 1), (1, 0)])
@pytest.mark.parametrize("judged", ["both", "better", "lucky"])
def test_half_of_the_repeats_choose_the_point_that_the_others_tell_of(
    tmp_path: Path, judged: str, lucky: int, better: int
) -> None:
    """One trial won by luck. The other has the better median in the first half of the repeats, the
    lucky one in the second, which is too late to choose it. Older runs hold the second half of
    both. If a run holds that of another point, as after growth, the one chosen is still missing."""
    study = make_trial(
        goals=["val/error < 0.5"], grid=EVERY_TEN, trials=2, repeats=6, repeat_best=2, keep=2,
        space=RATES, budget_steps=200,
    ).study  # fmt: skip
    run = new_run(tmp_path, study)
    steps = {lucky: [10, 90, 80, 70, 20, 20, 20], better: [40, 50, 60, 60, 100, 110, 120]}
    held = {lucky: judged != "better", better: judged != "lucky"}
    for index, of_repeats in steps.items():
        for repeat, last in enumerate(of_repeats[: 7 if held[index] else 4]):
            shown = {0: 1.0, last - 10: 1.0, last: 0.1}
            found = ended(study, index, "reached", shown, repeat)
            params = {"learning_rate": 0.1 + index}
            run.write(replace(found, trial=replace(found.trial, params=params)))
    (row,) = frontier_of(run)
    (of_other_goal,) = frontier_of(run, [Goal.parse("val/error < 0.2")])
    assert (row.steps, row.trial, row.finished) == (10, lucky, judged != "lucky")
    if judged == "lucky":
        assert row.repeats is None
        assert (of_other_goal.repeats.trial, of_other_goal.repeats.median) == (lucky, 20)
        return
    assert (row.repeats.trial, row.repeats.count, row.repeats.median) == (better, 3, 110)
    assert of_other_goal.repeats == row.repeats
    said = f"the fewest steps are of trial {lucky}, by luck: learning_rate {0.1 + lucky:g}"
    assert row.remarks()[0] == said
    assert row.answering == (better, {"learning_rate": 0.1 + better})
    assert points_of([row])[0].steps == 110
    assert "repeats_trial" in to_csv([row])


@pytest.mark.parametrize("status", ["reached", "exhausted", "failed"])
def test_a_repeat_counts_as_far_as_it_tells(status: Status, tmp_path: Path) -> None:
    """Ended at a looser goal it says nothing of this one, and failed it is none."""
    strict = Goal.parse("val/error < 0.1")
    study = make_trial(goals=["val/error < 0.5"], grid=EVERY_TEN, repeats=2, space=RATES).study
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
    assert "0 of 1 can be used, 4 are needed. Left out: 4,096 (not" in sentence(nothing)


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
    study = make_trial(
        goals=["val/error < 0.1"], grid=EVERY_TEN, trials=3, space=RATES, budget_steps=30
    ).study
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


def test_a_study_whose_program_ended_before_its_budget_has_finished(tmp_path: Path) -> None:
    program = Program(command=("train",))
    study = make_trial(
        goals=["val/error < 0.1"], trials=1, space=RATES, budget_steps=40, program=program
    ).study
    run = new_run(tmp_path, study)
    run.write(ended(study, 0, "exhausted", {30: 0.5}))
    run.put_together(study.key, finished=True)
    (row,) = frontier_of(run)
    assert row.finished
    assert "the last report was at step 30 of 40" in row.warnings[0]
