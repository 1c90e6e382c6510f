"""What speaks against a plan before anything is trained."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from orchestrator.records import ENOUGH_SIZES, Study

STARVED = 8
"""A smallest batch size that may see so many times fewer examples than the largest may starve."""


def starving(studies: Iterable[Study]) -> list[str]:
    """Recipes whose budget grants fewer examples the smaller the batch size, down to the smallest
    of all, as a number of steps alone does. A budget in examples or epochs grants all small batch
    sizes the same, even where `at_least_steps` grants the large ones more."""
    recipes: dict[tuple[str, str], list[Study]] = {}
    for study in studies:
        recipes.setdefault((study.workload, study.recipe), []).append(study)
    doubts: dict[str, list[str]] = {}
    for (workload, recipe), mine in recipes.items():
        ordered = sorted(mine, key=lambda study: study.batch_size)
        # Examples come in whole batches: a batch more is as many.
        rises = all(
            _examples(larger) > _examples(smaller) + larger.batch_size
            for smaller, larger in pairwise(ordered)
        )
        if rises and _examples(ordered[-1]) > STARVED * _examples(ordered[0]):
            doubts.setdefault(_doubt(workload, ordered[0], ordered[-1]), []).append(recipe)
    return [f"{doubt} Recipes: {', '.join(recipes)}." for doubt, recipes in doubts.items()]


def too_few(studies: Iterable[Study]) -> list[str]:
    """Sweeps of several batch sizes that are fewer than it takes to tell where a curve bends."""
    sizes: dict[str, set[int]] = {}
    for study in studies:
        if study.batch_schedule is None:
            sizes.setdefault(study.workload, set()).add(study.batch_size)
    return [
        f"{workload}: {len(mine)} batch sizes are too few to tell where the curve bends. It takes "
        f"{ENOUGH_SIZES} or more."
        for workload, mine in sizes.items()
        if 1 < len(mine) < ENOUGH_SIZES
    ]


def small_ghosts(workload: str, ghost_size: int, sizes: Iterable[int]) -> list[str]:
    """Batch sizes below the ghost size, at which batch norms see fewer examples than elsewhere."""
    small = [size for size in sorted({*sizes}) if size < ghost_size]
    if not small:
        return []
    return [
        f"{workload}: below the ghost size of {ghost_size}, so at batch size "
        f"{', '.join(map(str, small))}, its batch norms see fewer examples at once. That makes it "
        f"another network, which can't be compared with that of larger batch sizes."
    ]


def _examples(study: Study) -> int:
    return study.examples(study.budget_steps)


def _doubt(workload: str, small: Study, large: Study) -> str:
    unit = "examples" if small.train_size is None else "epochs"
    return (
        f"{workload}: small batch sizes may get too little training. The budget lets batch size "
        f"{small.batch_size:,} see {_examples(small):,} examples ({small.budget_steps:,} steps), "
        f"and batch size {large.batch_size:,} see {_examples(large):,}. A small batch size needs "
        f"more steps, and about as many examples: write "
        f"budget: {{{unit}: N, at_least_steps: M}}."
    )
