"""Advice on what to train next: the steps that narrow an answer most for their price, the commands
that take these steps, and remarks on the run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.analysis import Scaling, scalings
from orchestrator.analysis.next_steps import WORTH, Step, next_steps, step_in_words
from orchestrator.analysis.words import errors_in_words, listed
from orchestrator.files.yaml_files import write_yaml
from orchestrator.planning.sweep import Sweep
from orchestrator.planning.sweep_file import validated
from orchestrator.records import ENOUGH_SIZES, BadInput, Study, grouped
from orchestrator.results import FrontierRow, GoalOf, RunFiles, frontier_of, mean_costs, unknown_of

LISTED = 4
"""Largest number of studies that a remark names."""


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A step, with the command that takes it."""

    step: Step
    change: str | None
    """The change of the sweep file, as KEY=VALUE for `--set`. None if nothing can be trained in the
    run, or if no single setting makes the change."""
    command: str | None
    money: float | None
    """Cost at the sweep's price of a device-hour, in the same currency."""

    def to_json(self) -> dict[str, Any]:
        return {
            "what": step_in_words(self.step),
            **self.step.to_json(),
            "change": self.change,
            "command": self.command,
            "money": self.money,
        }


def advised_for(run: RunFiles, goals: Sequence[GoalOf] = ()) -> tuple[list[Suggestion], list[str]]:
    """The advised steps, each by itself, and remarks. `BadInput` for a run of branches."""
    if (unknown := unknown_of(run)) is not None:
        raise BadInput(f"{run.place} gives no advice. {unknown}", code="imported-run")
    rows, studies = frontier_of(run, goals), run.studies()
    sweep = None if run.imported else validated(run.sweep(), str(run.place))
    found = scalings(rows)
    steps = next_steps(found, studies, mean_costs(run, studies))
    remarks = [*_remarks(run, rows, found, steps), *go_beyond(run, found, studies)]
    return [_advice(run, sweep, studies, step) for step in steps], remarks


def _advice(run: RunFiles, sweep: Sweep | None, studies: Sequence[Study], step: Step) -> Suggestion:
    price = sweep and sweep.report.price_per_device_hour
    change = None
    if sweep is not None:
        change = (
            with_batch_sizes(studies, step.batch_sizes)
            if step.kind == "batch size"
            else with_more_of(sweep, step.kind, dict(step.totals), step.workloads, step.recipes)
        )
    return Suggestion(
        step=step,
        change=change,
        command=_command(run, change) or None,
        money=None if not price or step.seconds is None else price * step.seconds / 3600,
    )


def _command(run: RunFiles, change: str | None, said: str = "") -> str:
    """The command after what is said of it. Empty where no change can be made or trained."""
    if change is None or run.imported or run.place.packed:
        return ""
    path = str(run.place)
    file = "SWEEP_FILE" if run.place.local is None else f"{path}/sweep.yaml"
    return said + shlex.join(["orchestrate", "sweep", file, "--out", path, "--set", change])


def _remarks(
    run: RunFiles, rows: Sequence[FrontierRow], found: Sequence[Scaling], steps: Sequence[Step]
) -> Iterator[str]:
    """Remarks on a run; `found` are the answers of its curves."""
    if run.imported:
        yield (
            "This run was imported from an archive. Nothing can be trained in it, so no commands "
            "are given."
        )
    elif any(not row.finished for row in rows):
        resume = f" Finish it first: orchestrate resume {shlex.quote(str(run.place))}"
        yield f"The run has not finished.{'' if run.place.packed else resume}"
    if short := [row for row in rows if row.finished and not row.reached and not row.censored]:
        named = listed([f"{row.recipe} at {row.batch_size:,}" for row in short], LISTED)
        yield (
            f"The goal was not reached by {named}. Raise `budget`, or widen the ranges of "
            f"the search space."
        )
    helped = {each.names for step in steps for each in step.effects if each.is_worth_it}
    for one in found:
        name = ", ".join(one.names)
        if one.curves is None:
            yield f"{name}: {one.verdict}."
        elif one.names not in helped:
            said = f"no addition listed here takes {WORTH:.0%} off its interval"
            yield f"{name}: {said}. {errors_in_words(one)}"
    if rows and len({row.batch_size for row in rows}) < ENOUGH_SIZES:
        yield f"An answer takes {ENOUGH_SIZES} batch sizes. Add some to `batch_sizes`."
    if minima := [one.recipe for one in found if one.curves is not None and not one.of_medians]:
        yield (
            f"The points of {', '.join(dict.fromkeys(minima))} are minima over trials, which are "
            f"too low by luck; only repeats tell by how much."
            f"{_command(run, 'repeats=5', ' This adds them: ')}"
        )


def go_beyond(run: RunFiles, found: Sequence[Scaling], studies: Sequence[Study]) -> Iterator[str]:
    """Says which curves are only bounds until a smaller or a larger batch size is tested. That
    changes what their number is about, so it is no step that narrows it."""
    examples = [study.train_size for study in studies if study.train_size is not None]
    beyond: list[tuple[str, int, str]] = []
    for one in found:
        own = [s for s in studies if s.workload == one.workload and s.batch_schedule is None]
        smallest, largest = (end(study.batch_size for study in own) for end in (min, max))
        name = f"{one.workload}, {one.recipe}"
        if one.critical_by_examples_is and smallest > 1:
            why = f"Batch sizes below {smallest:,} may take fewer examples"
            beyond.append((why, smallest // 2, name))
        if one.still_falls and one.largest == largest != own[0].train_size:
            why = f"Steps still fall at {largest:,}, the largest batch size"
            beyond.append((why, min([2 * largest, *examples]), name))
    for (why, size), curves in grouped(beyond, lambda each: each[:2]).items():
        names = "; ".join(dict.fromkeys(name for *_, name in curves))
        adds = _command(run, with_batch_sizes(studies, [size]), " This adds one: ")
        yield f"{why}, so the answer is no more than a bound for {names}.{adds}"


def with_more_of(
    sweep: Sweep,
    what: Literal["trials", "repeats"],
    totals: Mapping[int, int],
    workloads: Collection[str],
    recipes: Collection[str],
) -> str:
    """The change that gives the studies of these workloads and recipes the numbers of trials or
    repeats in `totals`, by batch size. Entries that asked for fewer of them are left out."""
    named: dict[str, Any] = {}
    if {*workloads} != {*sweep.workloads}:
        named["workloads"] = [*workloads]
    if {*recipes} != {recipe.name for recipe in sweep.recipes}:
        named["recipes"] = [*recipes]
    entries = []
    for entry in (each.model_dump(exclude_defaults=True) for each in sweep.more):
        sizes = entry["batch_sizes"]
        same = entry == {**named, "batch_sizes": sizes, what: entry.get(what)}
        if not (same and {*sizes} <= totals.keys()):
            entries.append(entry)
    for number, sizes in grouped(sorted(totals), lambda size: totals[size]).items():
        entries.append({**named, "batch_sizes": sizes, what: number})
    return _change("more", entries)


def with_batch_sizes(studies: Sequence[Study], sizes: Collection[int]) -> str | None:
    """The change that adds these batch sizes. None if a list can't: workloads differ in theirs."""
    present: dict[str, set[int | str]] = {study.workload: set() for study in studies}
    for study in studies:
        if study.batch_schedule is None:
            full = study.batch_size == study.train_size
            present[study.workload].add("full" if full else study.batch_size)
    one, *others = present.values()
    if any(other != one for other in others):
        return None
    numbers = sorted({size for size in one if isinstance(size, int)} | {*sizes})
    return _change("batch_sizes", [*numbers, *["full"] * ("full" in one)])


def _change(key: str, value: Any) -> str:
    return f"{key}={write_yaml(value, width=math.inf, flow=True).strip()}"
