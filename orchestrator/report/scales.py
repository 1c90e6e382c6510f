"""Folds: the best batch size for an amount of training, and laws over data and model size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.analysis.best_batch import HEADS, BestBatch, rows_of
from orchestrator.analysis.scale_laws import Law, ScaleAnswer, law_in_words, scale_answer
from orchestrator.analysis.words import capital
from orchestrator.records import ENOUGH_SIZES, BadInput, counted, grouped
from orchestrator.report.sections import Show, bullets, fold, table
from orchestrator.report.style import Drawing, evenly, guide, mark, of_size, safe, shades, whiskers
from orchestrator.results import FrontierRow, GoalOf, RunFiles, frontier_of, holds_branches

MOST_STUDIES = 300
"""The most studies of a run whose best batch sizes the page, not the command, shows."""

MOST_LINES, MOST_NAMED = 20, 8
"""The most curves in one figure, and in its legend."""


def scale_answers(runs: Mapping[str, RunFiles]) -> ScaleAnswer | None:
    """The answer of runs whose trials were not stopped early; None if there are none."""
    asked = {name: run for name, run in runs.items() if _is_shown(run)}
    try:
        found = scale_answer(asked) if asked else None
    except BadInput:  # such as a metric that one of the runs did not measure
        return None
    return found if found and any(best.points for best in found.bests) else None


def _is_shown(run: RunFiles) -> bool:
    if run.is_compact or holds_branches(run):
        return False
    studies = run.studies()
    stops = any(study.stop_at_goal or study.stop_dominated for study in studies)
    return len(studies) <= MOST_STUDIES and (run.imported or not stops)


def frontier_for_page(run: RunFiles, goals: Sequence[GoalOf]) -> list[FrontierRow]:
    """The frontier that a page shows: none of a run without goals if it has best batch sizes."""
    asked = goals or any(study.goals for study in run.studies())
    return [] if not asked and scale_answers({"": run}) else frontier_of(run, goals)


def best_batch_fold(found: ScaleAnswer, show: Show, opened: bool) -> str:
    """Empty if too few batch sizes are known, as `laws_fold` is if there are no laws."""
    bests = [best for best in found.bests if len(best.points) >= ENOUGH_SIZES]
    inside = ""
    for recipe, mine in grouped(bests, lambda best: best.recipe).items():
        title = f"{recipe}: best {mine[0].metric} against batch size"
        inside += show(_valleys(evenly(mine, MOST_LINES)), title, "", "")
    inside += table("Best batch sizes, with 90 % intervals.", HEADS, rows_of(bests))
    known = sum(not best.verdict for best in bests)
    said = f"Known for {known} of {len(bests)} workloads and recipes"
    return fold("best-batch", "Best batch size", said, inside, opened) if bests else ""


def _valleys(bests: Sequence[BestBatch]) -> Drawing:
    figure = Drawing()
    for number, (best, colour) in enumerate(zip(bests, shades(len(bests)), strict=True)):
        name = f"{best.workload}, {best.within}"
        at = [
            (point.batch_size, point.value, f"{of_size(point.batch_size, name)}{point.value:.4g}")
            for point in best.points
        ]
        figure.line(name, at, mark(number, colour))
    points = [point for best in bests for point in best.points]
    figure.styled(
        "Batch size", f"Best {safe(bests[0].metric)}", showlegend=len(bests) <= MOST_NAMED
    )
    figure.log2("x", (point.batch_size for point in points))
    values = [point.value for point in points]
    if 0 < 3 * min(values) < max(values):
        figure.log10("y", values)
    return figure


def laws_fold(laws: Sequence[Law], show: Show, opened: bool) -> str:
    inside = ""
    for law in laws:
        first, *more = law_in_words(law)
        title = f"{capital(law.quantity)} of {law.recipe} over {' and '.join(law.exponents)}"
        inside += show(_points(law), title, f"It goes {first}.", "") + bullets(more)
    bent = sum(bool(law.bent) for law in laws)
    said = f"{counted(len(laws), 'law')}; {bent} with an exponent that changes"
    return fold("scales", "Data and model size", said, inside, opened) if laws else ""


def _points(law: Law) -> Drawing:
    """The points against the first scale, and the law for each place on the others."""
    figure, (x, *others) = Drawing(), [*law.exponents]
    lines = grouped(law.points, lambda point: tuple(point.at[name] for name in others))
    xs: list[float | None] = []
    ys: list[float | None] = []
    for number, (fixed, points) in enumerate(sorted(lines.items())):
        points.sort(key=lambda point: point.at[x])
        name = ", ".join(f"{other} {value:.3g}" for other, value in zip(others, fixed, strict=True))
        at = [(p.at[x], p.value.value, f"{safe(p.workload)}: {p.value.value:.4g}") for p in points]
        errors = whiskers([point.value for point in points])
        figure.line(name or "measured", at, mark(number), "markers", error_y=errors)
        xs += [*(point.at[x] for point in points), None]
        ys += [*(law.at(point.at).value.value for point in points), None]
    figure.add(guide(xs, ys, "the law", "dot"))
    figure.styled(safe(capital(x)), safe(capital(law.quantity)))
    figure.log10("x", (point.at[x] for point in law.points))
    figure.log10("y", (end for p in law.points for end in p.value.ends))
    return figure
