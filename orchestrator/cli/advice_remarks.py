"""Remarks on a run, printed below the steps that are advised for it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from orchestrator.analysis import Scaling
from orchestrator.analysis.known_points import KnownCurve
from orchestrator.analysis.next_trials import Step
from orchestrator.analysis.step_words import verdict_on
from orchestrator.results import FrontierRow

LISTED = 4
"""Largest number of studies that a remark names."""


def remarks(
    rows: Sequence[FrontierRow],
    found: Sequence[Scaling],
    curves: Sequence[KnownCurve],
    steps: Sequence[Step],
    *,
    place: str,
    imported: bool,
) -> Iterator[str]:
    """Remarks on the run at `place`; `found` are the answers of its curves."""
    yield from _of_the_run(rows, place, imported=imported)
    for scaling in found:
        if scaling.critical_batch_size is None:
            yield f"{scaling.workload}, {scaling.recipe}, {scaling.goal}: {scaling.verdict}."
    for curve in curves:
        if (said := verdict_on(curve, steps)) is not None:
            yield f"{_name(curve)}: {said}."
    if minima := [_name(curve) for curve in curves if not any(p.repeats for p in curve.points)]:
        yield (
            f"The points of these curves are minima over trials, which are too low by luck, and "
            f"without repeats their error is unknown: {'; '.join(minima)}. "
            f"{_with('repeats=5', place, imported)}"
        )
    if reasons := [*dict.fromkeys(one.quality_unknown for one in found if one.quality_unknown)]:
        keeping = f" {_with('stop.keep=5', place, imported)}" * any("keep" in r for r in reasons)
        yield f"The effect of more trials is unknown: {'; '.join(reasons)}.{keeping}"


def _of_the_run(rows: Sequence[FrontierRow], place: str, *, imported: bool) -> Iterator[str]:
    if imported:
        yield (
            "This run was imported from an archive. Nothing can be trained in it, so no commands "
            "are given."
        )
    elif any(not row.finished for row in rows):
        yield f"The run has not finished. Finish it first: orchestrate resume {shlex.quote(place)}"
    if short := [row for row in rows if row.finished and not row.reached and not row.censored]:
        named = ", ".join(f"{row.recipe} at {row.batch_size:,}" for row in short[:LISTED])
        more = f" and {len(short) - LISTED} others" * (len(short) > LISTED)
        yield (
            f"The goal was not reached by {named}{more}. Raise `budget`, or widen the ranges of "
            f"the search space."
        )


def _name(curve: KnownCurve) -> str:
    return f"{curve.workload}, {curve.recipe}, {curve.goal}"


def _with(change: str, place: str, imported: bool) -> str:
    if imported:
        return ""
    command = ["orchestrate", "sweep", f"{place}/sweep.yaml", "--out", place, "--set", change]
    return f"This command adds them: {shlex.join(command)}"
