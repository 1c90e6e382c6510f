"""Makes the KEY=VALUE changes for `--set` that give a run more trials, repeats or batch sizes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
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
    """The change that gives the studies of these workloads and recipes the numbers of trials or
    repeats in `totals`, by batch size. Batch sizes with the same numbers share an entry."""
    named: dict[str, Any] = {}
    if {*workloads} != {*sweep.workloads}:
        named["workloads"] = [*workloads]
    if {*recipes} != {recipe.name for recipe in sweep.recipes}:
        named["recipes"] = [*recipes]
    there = [entry.model_dump(exclude_defaults=True) for entry in sweep.more]
    same = [entry for entry in there if _studies(entry) == _studies(named)]
    others = [entry for entry in there if _studies(entry) != _studies(named)]
    asked = [{"batch_sizes": [size], what: number} for size, number in totals.items()]
    entries = [{**deepcopy(named), **entry} for entry in _put_together([*same, *asked])]
    return f"more={_flow([*others, *entries])}"


def _put_together(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The entries merged, so that each batch size is in only one of them, with the largest numbers
    that any entry gives it."""
    numbers: dict[int | str, dict[str, int]] = {}
    for entry in entries:
        for size in entry["batch_sizes"]:
            most = numbers.setdefault(size, {})
            for name in ("trials", "repeats"):
                if name in entry:
                    most[name] = max(entry[name], most.get(name, 0))
    alike: dict[tuple[tuple[str, int], ...], list[int | str]] = {}
    for size in sorted(numbers, key=lambda size: math.inf if size == "full" else int(size)):
        alike.setdefault(tuple(sorted(numbers[size].items(), reverse=True)), []).append(size)
    return [{"batch_sizes": sizes, **dict(most)} for most, sizes in alike.items()]


def _studies(entry: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """The workloads and recipes that an entry names."""
    return {*entry.get("workloads", ())}, {*entry.get("recipes", ())}


def with_batch_sizes(studies: Sequence[Study], sizes: Collection[int]) -> str | None:
    """The change that adds these batch sizes. None if one list can't express it, because the
    workloads have training sets of different sizes."""
    train_sizes = {study.workload: study.train_size for study in studies}
    present: dict[str, set[int]] = {workload: set() for workload in train_sizes}
    for study in studies:
        if study.batch_schedule is None:
            present[study.workload].add(study.batch_size)
    full = {workload for workload, size in train_sizes.items() if size in present[workload]}
    common = {
        size
        for workload, known in present.items()
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
    if any(found[workload] != present[workload] | {*sizes} for workload in present):
        return None
    return f"batch_sizes={_flow(listed)}"


def can_extend(sweep: Sweep) -> bool:
    """Whether `search.extend=true` lets the ranges of all recipes of the sweep grow."""
    return not any(recipe.search for recipe in sweep.recipes)


def _flow(value: Any) -> str:
    """The value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.strip()
