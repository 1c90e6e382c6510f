"""Advice on what to train next: the steps that narrow an answer most for their price, the commands
that take these steps, and remarks on the run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis import Scaling, scalings
from orchestrator.analysis.additions import Addition, Price, Prices
from orchestrator.analysis.candidates import Ground, middles
from orchestrator.analysis.known_curves import deciding_sizes, known_curves
from orchestrator.analysis.known_points import KnownCurve
from orchestrator.analysis.next_trials import Step, next_steps, step_of, within_budget
from orchestrator.analysis.step_words import addition_in_words, verdict_on
from orchestrator.planning.growing import can_extend, with_batch_sizes, with_more_of
from orchestrator.planning.sweep import Sweep
from orchestrator.planning.sweep_file import overridden, validated
from orchestrator.records import ENOUGH_SIZES, Study, StudyKey
from orchestrator.results import FrontierRow, GoalOf, Run, frontier_of, spent

MOST_SHOWN = 6
"""Largest number of steps that are shown."""

MOST_ALIKE = 2
"""Largest number of steps of one kind for the same recipes."""

LISTED = 4
"""Largest number of studies that a remark names."""

LISTED_POINTS = ("points", "grid")
"""Search algorithms whose number of trials is the number of points that the sweep file lists, so
that no trials can be added."""


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A step, with the command that takes it."""

    step: Step
    changes: tuple[str, ...]
    """Changes of the sweep file, each as KEY=VALUE for `--set`. Empty if nothing can be trained in
    the run, or if no single setting makes the change."""
    command: str | None
    money: float | None
    """Cost at the sweep's price of a device-hour, in the same currency."""

    def to_json(self) -> dict[str, Any]:
        return {
            "what": addition_in_words(self.step.addition),
            **self.step.to_json(),
            "changes": list(self.changes),
            "command": self.command,
            "money": self.money,
        }


@dataclass(frozen=True, kw_only=True)
class Advised:
    """The advice for a run."""

    suggestions: tuple[Suggestion, ...]
    curves: tuple[KnownCurve, ...]
    together: str | None
    """The command that takes all steps at once, if they share a budget; else None."""
    remarks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": [suggestion.to_json() for suggestion in self.suggestions],
            "curves": [
                {name: getattr(curve, name) for name in ("workload", "recipe", "goal", "width")}
                for curve in self.curves
            ],
            "command": self.together,
            "remarks": list(self.remarks),
        }


def advised_for(
    run: Run, goals: Sequence[GoalOf] = (), *, examples: float | None = None
) -> Advised:
    """The advised steps for a run: each by itself, or, with a budget in `examples`, the steps that
    share this budget. Raises `BadInput` for a run of branches."""
    rows = frontier_of(run, goals)
    studies = {study.key: study for study in run.studies()}
    sweep = None if run.imported else validated(run.sweep(), str(run.place))
    prices = _prices(run, studies)
    found = scalings(rows)
    curves = known_curves(rows, studies, found)
    ground = _ground(studies, rows, sweep, deciding_sizes(found))
    if examples is None:
        steps = _various(next_steps(curves, prices, ground))
    else:
        steps = within_budget(curves, prices, ground, examples)
    missing = _missing(rows, ground)
    if missing is not None:
        steps = [step_of(curves, prices, missing), *steps]
    book = _Book(run=run, sweep=sweep, studies=tuple(studies.values()))
    return Advised(
        suggestions=tuple(map(book.suggestion, steps)),
        curves=tuple(curves),
        together=book.command(steps) if examples is not None else None,
        remarks=tuple(
            _remarks(rows, found, curves, steps, place=str(run.place), imported=sweep is None)
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Book:
    """The run, its sweep and its studies, from which commands are made."""

    run: Run
    sweep: Sweep | None
    """None for an imported run, in which nothing can be trained."""
    studies: tuple[Study, ...]

    def suggestion(self, step: Step) -> Suggestion:
        price = self.sweep and self.sweep.report.price_per_device_hour
        seconds = step.amount.seconds
        change = None if self.sweep is None else self._change(self.sweep, step.addition)
        changes = () if change is None else (change,)
        return Suggestion(
            step=step,
            changes=changes,
            command=self._with(changes) if changes else None,
            money=None if not price or seconds is None else price * seconds / 3600,
        )

    def command(self, steps: Sequence[Step]) -> str | None:
        """One command that takes all these steps."""
        if self.sweep is None:
            return None
        sweep, sizes, changes = self.sweep, set[int](), dict[str, str]()
        for step in steps:
            addition = step.addition
            if addition.kind == "batch size":
                sizes |= {*addition.batch_sizes}
                change = with_batch_sizes(self.studies, sizes)
            else:
                change = self._change(sweep, addition)
            if change is not None:
                changes[change.partition("=")[0]] = change
                sweep = validated(overridden(sweep.resolved(), [change]), str(self.run.place))
        return self._with(changes.values()) if changes else None

    def _change(self, sweep: Sweep, addition: Addition) -> str | None:
        if addition.kind == "batch size":
            return with_batch_sizes(self.studies, addition.batch_sizes)
        if addition.kind == "range":
            return "search.extend=true" if can_extend(sweep) else None
        return with_more_of(
            sweep, addition.kind, dict(addition.totals), addition.workloads, addition.recipes
        )

    def _with(self, changes: Iterable[str]) -> str:
        here = self.run.place.local is not None
        file = str(self.run.place / "sweep.yaml") if here else "SWEEP_FILE"
        parts = ["orchestrate", "sweep", file, "--out", str(self.run.place)]
        return shlex.join([*parts, *(part for change in changes for part in ("--set", change))])


def _prices(run: Run, studies: Mapping[StudyKey, Study]) -> Prices:
    prices: dict[tuple[str, str], dict[int, Price]] = {}
    for study in spent(run, [*studies.values()]):
        curve = prices.setdefault((study.key.workload, study.key.recipe), {})
        curve[study.key.batch_size] = Price(
            trial=study.trial_examples,
            repeat=study.repeat_examples,
            seconds_per_example=study.seconds_per_example,
        )
    return prices


def _ground(
    studies: Mapping[StudyKey, Study],
    rows: Sequence[FrontierRow],
    sweep: Sweep | None,
    deciding: Sequence[int],
) -> Ground:
    of_one_size = [study for study in studies.values() if study.batch_schedule is None]
    ends = [study.train_size for study in of_one_size if study.train_size is not None]
    widened = {row.key for row in rows if any("was widened to" in text for text in row.warnings)}
    return Ground(
        workloads=tuple(dict.fromkeys(study.workload for study in of_one_size)),
        recipes=tuple(dict.fromkeys(study.recipe for study in of_one_size)),
        batch_sizes=tuple(sorted({study.batch_size for study in of_one_size})),
        trials=min((study.trials for study in of_one_size), default=1)
        if sweep is None
        else sweep.search.trials,
        largest=min(ends, default=None),
        deciding=deciding,
        fixed=widened
        | {
            study.key
            for study in of_one_size
            if study.is_one_point or study.search.algorithm in LISTED_POINTS
        },
    )


def _various(steps: Sequence[Step]) -> list[Step]:
    """The best steps, with at most MOST_ALIKE of the same kind for the same recipes."""
    found: list[Step] = []
    for step in steps:
        like = (step.addition.kind, step.addition.workloads, step.addition.recipes)
        alike = [
            other
            for other in found
            if (other.addition.kind, other.addition.workloads, other.addition.recipes) == like
        ]
        if len(alike) < MOST_ALIKE and len(found) < MOST_SHOWN:
            found.append(step)
    return found


def _missing(rows: Sequence[FrontierRow], ground: Ground) -> Addition | None:
    """The batch sizes that must be added before any curve gives an answer. They lie in the middle
    of the widest gaps. None if there are enough, or if the run has not finished."""
    short = ENOUGH_SIZES + 1 - len(ground.batch_sizes)
    if short <= 1 or not ground.batch_sizes or any(not row.finished for row in rows):
        return None
    sizes: list[int] = []
    while len(sizes) < short and (found := middles(sorted({*ground.batch_sizes, *sizes}))):
        sizes.append(found[0])
    if not sizes:
        return None
    return Addition(
        kind="batch size",
        workloads=ground.workloads,
        recipes=ground.recipes,
        totals=tuple((size, ground.trials) for size in sorted(sizes)),
    )


def _remarks(
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
