"""Proposes the points of a search. A design is one table of points per sweep. It does not depend on
anything that happens while the sweep runs, so every batch size is searched with the same points."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orchestrator.records import (
    DESIGN_NAMES,
    BadInput,
    Choice,
    Space,
    Study,
    Value,
    derive_seed,
    refuse_unknown,
    searched,
    unknown,
)
from orchestrator.search.space import assemble, distinct

if TYPE_CHECKING:
    from orchestrator.search.adaptive import Adaptive

MOST_POINTS = 100_000
"""Largest number of points of a study, more than were published, in a few megabytes."""

Design = Callable[[int, int, int], NDArray[np.float64]]
"""Function (seed, dimensions, points) -> the first points of a sequence in the unit cube. A longer
table begins with the points of a shorter one."""

Point = dict[str, Value]

DIGITS_BITS = 54
"""Number of bits of a coordinate of Halton's sequence: all that a float can hold."""


def halton(seed: int, dimensions: int, points: int) -> NDArray[np.float64]:
    """Points of Halton's sequence, scrambled as by Owen (arXiv:1706.02808): each digit of the index
    goes through its own random permutation. The points equal scipy's, bit by bit. Scipy is not used
    because importing it takes longer than most plans."""
    (rng,), columns = np.random.default_rng(seed).spawn(1), []
    for base in itertools.islice(_primes(), dimensions):
        digits, column, weight = np.arange(points), np.zeros(points), 1 / base
        for _ in range(math.ceil(DIGITS_BITS / math.log2(base)) - 1):
            permuted = np.arange(base)
            rng.shuffle(permuted)
            column += permuted[digits % base] * weight
            digits, weight = digits // base, weight / base
        columns.append(column)
    return np.stack(columns, axis=1)


def _primes() -> Iterator[int]:
    found: list[int] = []
    for number in itertools.count(2):
        if all(number % prime for prime in found):
            found.append(number)
            yield number


def sobol(seed: int, dimensions: int, points: int) -> NDArray[np.float64]:
    from scipy.stats import qmc  # takes a second to load

    # Scipy warns that the sequence is balanced for powers of two only. Other numbers of points are
    # useful all the same.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        table: NDArray[np.float64] = qmc.Sobol(dimensions, scramble=True, rng=seed).random(points)
    return table


def independent(seed: int, dimensions: int, points: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).random((points, dimensions))


DESIGNS: dict[str, Design] = dict(zip(DESIGN_NAMES, (halton, sobol, independent), strict=True))

ADAPTIVE = ("tpe", "gp", "cmaes")
"""Names of Optuna's samplers. Other samplers are given as an import path."""


def check_algorithm(algorithm: str) -> str:
    """Refuses an unknown algorithm, and a sampler that can't be imported."""
    known = (*DESIGNS, "grid", "points")
    if algorithm not in (*known, *ADAPTIVE) and ":" not in algorithm:
        raise unknown("search algorithm", algorithm, (*known, *ADAPTIVE))
    if algorithm not in known:
        from orchestrator.search.adaptive import check_sampler

        check_sampler(algorithm)
    return algorithm


def propose(study: Study, sweep_seed: int, first: int, count: int) -> list[Point]:
    """The points of a study's design with numbers `first` to `first + count - 1`."""
    plan, space = study.search, study.space
    if plan.algorithm == "points":
        return [dict(point) for point in plan.points[first : first + count]]
    end, dimensions = first + count, len(searched(space))
    table: list[list[float]] = [[]] * end
    if dimensions:
        seed = derive_seed(sweep_seed, "design")
        table = DESIGNS[plan.algorithm](seed, dimensions, end).tolist()
    return [assemble(space, row) for row in table[first:]]


def sampler_for(study: Study, sweep_seed: int) -> Adaptive | None:
    """The sampler that proposes the points of `study`; None if they don't depend on results."""
    if not study.search.is_adaptive:
        return None
    from orchestrator.search.adaptive import Adaptive

    seed = derive_seed(sweep_seed, "sampler", str(study.key))
    return Adaptive(study.space, study.search.algorithm, seed)


def grid(space: Space, axes: Mapping[str, int]) -> tuple[Point, ...]:
    """Every combination of values on the axes. `axes` is metaparameter -> number of values, which
    are evenly spaced and include both ends of the range. A choice in `axes` takes all of its
    options. Metaparameters that are not in `axes` stay in the middle of their range."""
    refuse_unknown("axis", sorted(axes), searched(space))
    levels = []
    for name in searched(space):
        entry = space[name]
        if name not in axes:
            levels.append([0.5])
        elif isinstance(entry, Choice):
            levels.append([(k + 0.5) / len(entry.options) for k in range(len(entry.options))])
        else:
            count = axes[name]
            levels.append([k / (count - 1) for k in range(count)] if count > 1 else [0.5])
    if (count := math.prod(map(len, levels))) > MOST_POINTS:
        raise BadInput(
            f"A grid must have at most {MOST_POINTS:,} points, not {count:,}.", code="too-many"
        )
    # Rounding can make points equal.
    return distinct(assemble(space, row) for row in itertools.product(*levels))


def even_axes(space: Space, trials: int) -> dict[str, int]:
    """The axes, with equally many values on each, of a grid of at most `trials` points."""
    names = searched(space)
    options = [len(entry.options) for entry in space.values() if isinstance(entry, Choice)]
    each, least = math.floor(trials ** (1 / max(len(names), 1)) + 1e-9), math.prod(options)
    while each > 1 and least * each ** (len(names) - len(options)) > trials:
        each -= 1
    if least > trials:
        raise BadInput(
            f"every option of its choices makes {least:,} points, more than {trials:,} `trials`. "
            f"Raise `trials`, or name the axes in `grid`: the others stay in the middle.",
            code="too-many",
        )
    return dict.fromkeys(names, each)
