"""Folds: the best batch size at fixed amounts of training, and laws over data and model size."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from orchestrator.analysis import (
    BestBatch,
    Law,
    ScaleAnswer,
    best_in_words,
    law_in_words,
    notes_on,
    scale_answer,
)
from orchestrator.analysis.scale_laws import metric_of
from orchestrator.records import ENOUGH_SIZES, BadInput, Study
from orchestrator.report.content import grouped
from orchestrator.report.sections import Show, bullets, fold, table
from orchestrator.report.style import (
    add_line,
    evenly,
    log2_axis,
    log10_axis,
    mark,
    of_size,
    safe,
    shades,
    styled,
    whiskers,
)
from orchestrator.results import FrontierRow, GoalOf, Run, Within, frontier_of, holds_branches

MOST_STUDIES = 300
"""The most studies of runs whose best batch sizes the page shows; `orchestrate scale` shows all."""

MOST_LINES = 20
"""The most curves in one figure."""

SHARES = (1, 4, 16)
"""The fractions of a run's budget at which the best batch size is asked for."""

MOST_NAMED = 8
"""The most curves that a legend names."""

READING = "The best value of each batch size within an amount of training."


def scale_answers(runs: Sequence[Run]) -> ScaleAnswer | None:
    """The answer of runs whose trials were not stopped early; None if there are none."""
    asked = [run for run in runs if not (run.is_compact or holds_branches(run))]
    studies = [study for run in asked for study in run.studies()]
    asked = [run for run in asked if run.imported or not any(map(_stops, run.studies()))]
    if not asked or len(studies) > MOST_STUDIES:
        return None
    whole = None
    try:
        metric = metric_of(asked[0])
        whole = scale_answer(asked, metric)
        amounts = sorted({Within.parse(best.within) for best in whole.bests}, key=str)
        if len(amounts) == 1:
            (one,) = amounts
            parts = [Within.of(one.amount // share, one.unit) for share in SHARES]
            return scale_answer(asked, metric, within=[part for part in parts if part.amount])
    except BadInput:  # such as several metrics and no goal
        return whole
    return whole if any(best.points for best in whole.bests) else None


def frontier_for_page(run: Run, goals: Sequence[GoalOf]) -> list[FrontierRow]:
    """The frontier that a page shows: none of a run without goals if it has best batch sizes."""
    asked = goals or any(study.goals for study in run.studies())
    return [] if not asked and scale_answers([run]) else frontier_of(run, goals)


def _stops(study: Study) -> bool:
    return study.stop_at_goal or study.stop_dominated


def scale_folds(found: ScaleAnswer | None, show: Show) -> str:
    """Both folds, each empty if there is nothing to say."""
    if found is None:
        return ""
    bests = [best for best in found.bests if len(best.points) >= ENOUGH_SIZES]
    return _best_batch(bests, show) + _laws(found.laws, show)


def _best_batch(bests: Sequence[BestBatch], show: Show) -> str:
    if not bests:
        return ""
    inside = ""
    for recipe, mine in grouped(bests, lambda best: best.recipe).items():
        title = f"{recipe}: best {mine[0].metric} against batch size"
        inside += show(_valleys(evenly(mine, MOST_LINES)), title, "", READING)
    rows = [
        [one.workload, one.recipe, one.within, best_in_words(one), "; ".join(notes_on(one))]
        for one in bests
    ]
    heads = ["Workload", "Recipe", "Within", "Best batch size", "Notes"]
    inside += table("Best batch sizes, with 90 % intervals.", heads, rows)
    known = sum(not best.verdict for best in bests)
    said = f"Known for {known} of {len(bests)} amounts of training"
    return fold("best-batch", "Best batch size", said, inside)


def _valleys(bests: Sequence[BestBatch]) -> go.Figure:
    figure, colours = go.Figure(), shades(len(bests))
    several = len({one.workload for one in bests}) > 1
    for number, best in enumerate(bests):
        name = f"{best.workload}, " * several + best.within.replace("=", " ")
        at = [
            (point.batch_size, point.value, f"{of_size(point.batch_size, name)}{point.value:.4g}")
            for point in best.points
        ]
        add_line(figure, name, at, mark(number, colours[number]))
    values = [point.value for best in bests for point in best.points]
    styled(figure, "Batch size", f"Best {safe(bests[0].metric)}")
    figure.update_layout(showlegend=len(bests) <= MOST_NAMED)
    figure.update_xaxes(**log2_axis(point.batch_size for b in bests for point in b.points))
    if min(values) > 0 and max(values) > 3 * min(values):
        figure.update_yaxes(**log10_axis(values))
    return figure


def _laws(laws: Sequence[Law], show: Show) -> str:
    if not laws:
        return ""
    inside = ""
    for law in laws:
        first, *more = law_in_words(law)
        title = f"{law.quantity[0].upper()}{law.quantity[1:]} of {law.recipe}"
        inside += show(_points(law), f"{title} over {' and '.join(law.exponents)}", f"{first}.", "")
        inside += bullets(more)
    said = f"{len(laws)} laws; {sum(bool(law.bent) for law in laws)} with an exponent that changes"
    return fold("scales", "Data and model size", said, inside)


def _points(law: Law) -> go.Figure:
    """The points against the first scale, a line for each place on the others, and the law."""
    figure, (x, *others) = go.Figure(), [*law.exponents]
    lines = grouped(law.points, lambda point: tuple(point.at[name] for name in others))
    for number, (place, points) in enumerate(sorted(lines.items())):
        points.sort(key=lambda point: point.at[x])
        name = ", ".join(f"{other} {value:.3g}" for other, value in zip(others, place, strict=True))
        at = [(p.at[x], p.value.value, f"{p.workload}: {p.value.value:.4g}") for p in points]
        look = mark(number)
        figure.add_scatter(
            x=[p.at[x] for p in points],
            y=[law.at(p.at).value.value for p in points],
            mode="lines", line={"dash": "dot", "color": look["line"]["color"]}, showlegend=False,
            hoverinfo="skip",
        )  # fmt: skip
        add_line(
            figure, name or "measured", at, {**look, "line": {"width": 0}},
            error_y=whiskers([p.value for p in points]),
        )  # fmt: skip
    styled(figure, x.capitalize(), law.quantity.capitalize())
    figure.update_xaxes(**log10_axis(point.at[x] for point in law.points))
    figure.update_yaxes(**log10_axis(end for p in law.points for end in p.value.ends))
    return figure
