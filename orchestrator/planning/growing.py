"""What to change in a sweep so that its run gets more of something, as `--set` has it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import yaml

from orchestrator.planning.batch_sizes import batch_sizes_of
from orchestrator.planning.sweep import Sweep
from orchestrator.records import BadInput, Study


def with_more_of(
    sweep: Sweep,
    what: Literal["trials", "repeats"],
    totals: Mapping[int, int],
    workloads: Collection[str],
    recipes: Collection[str],
) -> str:
    """The change that gives studies of these workloads and recipes so many trials or repeats, by
    batch size. Entries that are about the same studies become one."""
    entries: dict[tuple[tuple[str, ...], ...], dict[str, Any]] = {}
    for entry in sweep.more:
        dumped = entry.model_dump(exclude_defaults=True)
        _merge(entries, dumped)
    by_number: dict[int, list[int]] = {}
    for size, number in totals.items():
        by_number.setdefault(number, []).append(size)
    for number, sizes in by_number.items():
        named: dict[str, Any] = {}
        if {*workloads} != {*sweep.workloads}:
            named["workloads"] = [*workloads]
        if {*recipes} != {recipe.name for recipe in sweep.recipes}:
            named["recipes"] = [*recipes]
        _merge(entries, {**named, "batch_sizes": sizes, what: number})
    return f"more={_flow([*entries.values()])}"


def with_batch_sizes(studies: Sequence[Study], sizes: Collection[int]) -> str | None:
    """The change that adds these batch sizes; None where one list can't say so for all workloads,
    whose training sets are of several sizes."""
    train_sizes = {study.workload: study.train_size for study in studies}
    there: dict[str, set[int]] = {workload: set() for workload in train_sizes}
    for study in studies:
        if study.batch_schedule is None:
            there[study.workload].add(study.batch_size)
    full = {workload for workload, size in train_sizes.items() if size in there[workload]}
    common = {
        size
        for workload, known in there.items()
        for size in known
        if not (workload in full and size == train_sizes[workload])
    }
    listed: list[int | str] = [*sorted({*common, *sizes}), *(["full"] if full else [])]
    try:
        found = {
            workload: {*batch_sizes_of(listed, workload, size)}
            for workload, size in train_sizes.items()
        }
    except BadInput:
        return None
    if any(found[workload] != there[workload] | {*sizes} for workload in there):
        return None
    return f"batch_sizes={_flow(listed)}"


def can_extend(sweep: Sweep) -> bool:
    """Whether one setting lets the ranges of all its recipes grow."""
    return not any(recipe.search for recipe in sweep.recipes)


def _merge(
    entries: dict[tuple[tuple[str, ...], ...], dict[str, Any]], entry: Mapping[str, Any]
) -> None:
    names = ("workloads", "recipes", "batch_sizes")
    of = tuple(tuple(sorted(map(str, entry.get(name, ())))) for name in names)
    there = entries.setdefault(of, {name: entry[name] for name in names if name in entry})
    for name in ("trials", "repeats"):
        if entry.get(name) is not None:
            there[name] = max(entry[name], there.get(name) or 0)


def _flow(value: Any) -> str:
    """On one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.strip()
