"""The points a search tries. The design is one table per sweep, so it depends on nothing that
happens while the sweep runs, and every batch size is searched with the same points."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc

from orchestrator.records import Choice, Range, Space, Study, Trial, derive_seed


def design(seed: int, dimensions: int, points: int) -> NDArray[np.float64]:
    """The first `points` points of the scrambled Halton sequence of `seed` in the unit cube.
    A longer design begins with the shorter one."""
    if dimensions == 0:
        return np.zeros((points, 0))
    sequence = qmc.Halton(dimensions, scramble=True, rng=derive_seed(seed, "design"))
    table: NDArray[np.float64] = sequence.random(points)
    return table


def propose(study: Study, sweep_seed: int) -> list[Trial]:
    """The trials of `study`, in order of index."""
    searched = [name for name, entry in study.space.items() if isinstance(entry, (Range, Choice))]
    table = design(sweep_seed, len(searched), study.trials)
    return [
        Trial(
            study=study,
            index=index,
            seed=derive_seed(sweep_seed, "trial", index),
            params=_values(study.space, dict(zip(searched, row.tolist(), strict=True))),
        )
        for index, row in enumerate(table)
    ]


def _values(space: Space, fractions: dict[str, float]) -> dict[str, float | int | str | bool]:
    return {
        name: entry.at(fractions[name]) if isinstance(entry, (Range, Choice)) else entry
        for name, entry in space.items()
    }
