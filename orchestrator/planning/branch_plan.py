"""Derives the studies of branches from their trunk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from orchestrator.planning.branch_parts import EARLIEST, LATEST, Branches, Spread
from orchestrator.planning.sweep import Sweep
from orchestrator.records import (
    BadInput,
    BatchSchedule,
    Choice,
    EvaluationGrid,
    SearchPlan,
    Study,
    Trial,
    Value,
    derive_seed,
    searched,
    wrong_value,
)
from orchestrator.search import Fork

STEPS = 16
"""Number of steps of the shortest branches at the largest batch size, if no length is given."""

FEWEST = 4
"""Smallest number of evaluations of a branch, however short it is."""

LENGTHS = 4
"""Number of lengths of branches, each twice the one before, if the file gives no number."""

CONFIRMING = 3
"""Trainings per seed that confirm schedules: with two schedules and with the constant batch."""


def with_branches(asked: Branches, study: Study) -> tuple[Study, ...]:
    """The study of the trunk and the studies of its branches, one for each point and batch size."""
    params = _params(study)
    points = asked.points
    if isinstance(points, Spread):
        points = _spread(study, points.count)
    # States are kept at measurements of the trunk, so these must be as close as the points are.
    often = replace(study.grid, min_gap=min(study.grid.min_gap, *points))
    study = replace(study, grid=often)
    steps = tuple(dict.fromkeys(_measured_from(study, step) for step in sorted(points)))
    trunk = replace(
        study,
        goals=(),
        repeats=0,
        stop_at_goal=False,
        stop_dominated=False,
        states_at=steps,
        extras=replace(study.extras, noise_scale="always"),
    )
    forks = product(steps, sorted(asked.factors))
    return (trunk, *(_branches(trunk, asked, step, factor, params) for step, factor in forks))


def trunk_of(sweep: Sweep, studies: Sequence[Study]) -> Trial:
    assert sweep.branch is not None
    seed = sweep.branch.trunk_seed
    (study,) = (study for study in studies if study.states_at)
    seed = derive_seed(sweep.seed, "trial", 0) if seed is None else seed
    return Trial(study=study, index=0, seed=seed, params=_params(study))


def points_of(sweep: Sweep, studies: Sequence[Study]) -> list[Fork]:
    asked = sweep.branch
    assert asked is not None
    (trunk,) = (study for study in studies if study.states_at)
    found = []
    for step in trunk.states_at:
        branches = (s for s in studies if s.start_step == step and not s.states_at)
        of_point = tuple(sorted(branches, key=lambda study: study.batch_size))
        factors = (study.batch_size // trunk.batch_size for study in of_point)
        rates = tuple(len(asked.learning_rate.at(factor)) for factor in factors)
        point = Fork(
            at_examples=trunk.examples(step),
            studies=of_point,
            lengths=_lengths(trunk, asked, step),
            seeds=asked.seeds,
            choosing=asked.seeds // 2 if max(rates) > 1 else 0,
            asked=rates,
        )
        found.append(point)
    return found


def foreseen(sweep: Sweep, studies: Sequence[Study]) -> list[Study]:
    """Studies for estimates of how much is trained. For a trunk with branches these include the
    trainings that confirm schedules, but no rates that are added beside the best: nobody knows how
    many they will be. Other studies are returned as they are."""
    asked = sweep.branch
    if asked is None:
        return [*studies]
    trunk = trunk_of(sweep, studies).study
    found = [replace(trunk, budget_steps=trunk.states_at[-1], states_at=())]
    if asked.confirm:
        found.append(
            replace(trunk, recipe="to confirm", states_at=(), trials=CONFIRMING * asked.seeds)
        )
    for point in points_of(sweep, studies):
        for study, rates in zip(point.studies, point.asked, strict=True):
            size, gap = study.batch_size, study.grid.min_gap * trunk.batch_size
            branch = replace(
                study.with_batches_of(size),
                batch_schedule=None,
                grid=EvaluationGrid(spacing=0, min_gap=gap // size),
                budget_steps=point.lengths[-1] // size,
                trials=rates * point.choosing + point.seeds - point.choosing,
            )
            found.append(branch)
    return found


def _params(study: Study) -> dict[str, Value]:
    if names := searched(study.space):
        raise BadInput(
            f"trunk: each metaparameter must have one value, but {', '.join(names)} would be "
            f"searched. Give values in `space`, write `space: {{only: {{...}}}}`, or take the "
            f"winner of a run: `trunk: {{run: runs/NAME, batch_size: {study.batch_size}}}`.",
            code="missing-value",
        )
    params = {n: v for n, v in study.space.items() if not isinstance(v, Choice)}
    rate = params.get("learning_rate")
    if not isinstance(rate, int | float) or rate <= 0:
        raise wrong_value(
            "trunk: `learning_rate`", "a number above 0, of which branches try multiples", rate
        )
    return params  # type: ignore[return-value]


def _spread(study: Study, count: int) -> list[int]:
    """Steps at equal logarithmic distances, from a small part of the budget to half of it."""
    first, last = (max(1, round(share * study.budget_steps)) for share in (EARLIEST, LATEST))
    return [round(first * (last / first) ** (n / max(count - 1, 1))) for n in range(count)]


def _measured_from(study: Study, step: int) -> int:
    """The step of the first measurement at or after `step`: states are kept at measurements."""
    if step > study.budget_steps:
        raise BadInput(
            f"points: step {step:,} lies beyond the end of the trunk, step {study.budget_steps:,}.",
            code="beyond-the-end",
        )
    found: int = next(at for at in study.measured() if at >= step)
    return found


def _branches(
    trunk: Study, asked: Branches, step: int, factor: int, params: dict[str, Value]
) -> Study:
    size = factor * trunk.batch_size
    if size > (trunk.train_size or size):
        raise BadInput(
            f"factors: {factor} times the trunk's batch size is {size:,}, which is more than the "
            f"{trunk.train_size:,} training examples of {trunk.workload}.",
            code="batch-too-large",
        )
    schedule = BatchSchedule.constant(trunk.batch_size).then(
        batch_size=size, factor=1.0, at=trunk.examples(step)
    )
    base, multiples = float(params["learning_rate"]), asked.learning_rate
    rates = [base * by for by in (*multiples.at(factor), *multiples.beside(factor))]
    points = tuple({**params, "learning_rate": rate} for rate in rates)
    return replace(
        trunk,
        recipe=f"from step {step}",
        batch_size=size,
        batch_schedule=schedule,
        start_step=step,
        states_at=(),
        budget_steps=schedule.steps(trunk.budget_examples),
        grid=EvaluationGrid(spacing=0, min_gap=_gap(trunk, asked) // trunk.batch_size),
        space={**params, "learning_rate": Choice(options=tuple(rates))},
        search=SearchPlan(algorithm="points", points=points),
        trials=len(points) * asked.seeds,
        extras=replace(trunk.extras, noise_scale="never"),
    )


def _gap(trunk: Study, asked: Branches) -> int:
    """Examples between two measurements of a branch: a whole number of batches of each size."""
    unit = math.lcm(*asked.factors) * trunk.batch_size
    first = asked.length.examples or STEPS * max(asked.factors) * trunk.batch_size
    return unit * max(1, round(first / asked.length.evaluations / unit))


def _lengths(trunk: Study, asked: Branches, step: int) -> tuple[int, ...]:
    """Lengths of the branches from a point, in examples, as far as the trunk's budget allows."""
    gap = _gap(trunk, asked)
    first = asked.length.examples or STEPS * max(asked.factors) * trunk.batch_size
    first = gap * max(FEWEST, math.ceil(first / gap))
    room = trunk.budget_examples - trunk.examples(step)
    longest = asked.length.at_most or first * 2 ** (LENGTHS - 1)
    if first > longest:
        raise BadInput(
            f"length: `at_most` is {longest:,} examples, but the shortest branches take {first:,}. "
            f"Raise it, or give smaller `examples` or factors.",
            code="range-order",
        )
    if first > (most := min(longest, room)):
        raise BadInput(
            f"points: after step {step:,}, {room:,} examples are left of the trunk's budget, but "
            f"the shortest branches take {first:,}. Give an earlier point, smaller factors, or the "
            f"trunk a larger budget.",
            code="beyond-the-end",
        )
    return tuple(first * 2**power for power in range(int(math.log2(most / first)) + 1))
