"""Warnings about a plan, given before anything is trained, and about dear evaluations."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from orchestrator.programs.commands import has_seed
from orchestrator.records import ENOUGH_SIZES, Study, grouped

STARVED = 8
"""Factor between the examples that the largest and the smallest batch size may see. From here on a
warning says that small batch sizes may get too little training."""

DEAR_SHARE, FAIR_SHARE = 1 / 3, 0.15
"""Shares of the time. If evaluations take more than the first, they are reported, and a distance
between evaluations is proposed at which they take the second."""

COARSEST = 0.05
"""Largest distance between evaluations that is proposed, as a share of a training. The goal may be
reached half way."""


def starving(studies: Iterable[Study]) -> list[str]:
    """Warnings about recipes whose budget gives small batch sizes fewer examples, down to the
    smallest one, as a budget in steps alone does. A budget in examples or epochs gives all small
    batch sizes the same number of examples, even if `at_least_steps` gives large ones more."""
    recipes = grouped(studies, lambda study: (study.workload, study.recipe))
    doubts: dict[str, list[str]] = {}
    for (workload, recipe), of_recipe in recipes.items():
        ordered = sorted(of_recipe, key=lambda study: study.batch_size)
        # Budgets are rounded to whole batches, so a difference of one batch counts as equal. If the
        # smallest batch size gets more steps than the largest, it is not steps that bound it.
        rises = ordered[0].budget_steps <= ordered[-1].budget_steps and all(
            larger.budget_examples > smaller.budget_examples + larger.batch_size
            for smaller, larger in pairwise(ordered)
        )
        if rises and ordered[-1].budget_examples > STARVED * ordered[0].budget_examples:
            doubts.setdefault(_doubt(workload, ordered[0], ordered[-1]), []).append(recipe)
    return [f"{doubt} Recipes: {', '.join(recipes)}." for doubt, recipes in doubts.items()]


def too_few(studies: Iterable[Study]) -> list[str]:
    """Warnings about sweeps with too few batch sizes to tell where a curve bends."""
    sizes: dict[str, set[int]] = {}
    for study in studies:
        if study.batch_schedule is None:
            sizes.setdefault(study.workload, set()).add(study.batch_size)
    return [
        f"{workload}: {len(of_workload)} batch sizes are too few to tell where the curve bends. "
        f"Give {ENOUGH_SIZES} or more."
        for workload, of_workload in sizes.items()
        if 1 < len(of_workload) < ENOUGH_SIZES
    ]


def without_repeats(studies: Iterable[Study]) -> list[str]:
    """A warning about noise scales that are asked of repeats where there are none."""
    bare = [s for s in studies if s.extras.noise_scale == "repeats" and not s.repeats]
    said = (
        f"`evaluate.noise_scale: repeats` measures nothing in {len(bare):,} of the studies, since "
        f"they have no repeats. Add `repeats: 5`, or measure in every trial: `noise_scale: true`."
    )
    return [said] if bare else []


def of_programs(studies: Iterable[Study]) -> list[str]:
    """Sentences about programs that a user should know before they are trained."""
    seedless = {s.workload for s in studies if s.program is not None and not has_seed(s.program)}
    return [
        f"The command of {name} has no {{seed}}, so it has no repeats: points are minima, which "
        f"are too low by luck."
        for name in sorted(seedless)
    ]


def small_ghosts(workload: str, ghost_size: int, sizes: Iterable[int]) -> list[str]:
    """Warnings about batch sizes below the ghost size, whose batch norms see fewer examples."""
    small = [size for size in sorted({*sizes}) if size < ghost_size]
    if not small:
        return []
    return [
        f"{workload}: batch size {', '.join(map(str, small))} is below the ghost size of "
        f"{ghost_size}, so its batch norms see fewer examples at once. That makes it another "
        f"network, which can't be compared with that of larger batch sizes."
    ]


def dear_evaluations(
    *, examples: int, evaluations: int, training: float, evaluating: float
) -> str | None:
    """A sentence that says which share of the time evaluations take in a training, and how to lower
    it, as far as steps to goal can then still be told. None if the share is at most DEAR_SHARE.
    `training` and `evaluating` are seconds."""
    share = evaluating / (training + evaluating or 1)
    if share <= DEAR_SHARE:
        return None
    fewer = share / (1 - share) / FAIR_SHARE * (1 - FAIR_SHARE) if share < 1 else 100
    fair, most = fewer * examples / evaluations, COARSEST * examples
    said = f"Evaluations take {share:.0%} of the time."
    if most <= examples / evaluations:
        return f"{said} With fewer, the steps to the goal would be known too coarsely."
    apart = float(f"{min(fair, most):.1e}")
    return (
        f"{said} With at least {apart:.0f} training examples between two of them they would take "
        f"less, and steps to the goal still be known to a tenth or so: "
        f"`evaluate: {{min_examples: {apart:.0f}}}`."
    )


def _doubt(workload: str, small: Study, large: Study) -> str:
    unit = "examples" if small.train_size is None else "epochs"
    return (
        f"{workload}: small batch sizes may get too little training. The budget lets batch size "
        f"{small.batch_size:,} see {small.budget_examples:,} examples ({small.budget_steps:,} "
        f"steps), and batch size {large.batch_size:,} see {large.budget_examples:,}. A small batch "
        f"size needs more steps, and about as many examples: write "
        f"budget: {{{unit}: N, at_least_steps: M}}."
    )
