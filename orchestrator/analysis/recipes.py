"""Which of two recipes scales further."""

from __future__ import annotations

import numpy as np

from orchestrator.analysis.curve import Floats, ratio_of_draws
from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.scaling import CRITICAL_TOLERANCE, Scaling


def compared_with(one: Scaling, other: Scaling) -> tuple[Estimate, Estimate]:
    """Two ratios of a recipe to another one: of the batch sizes that take a fifth more examples,
    and of the fewest steps of any tested batch size."""
    assert one.curves is not None
    assert other.curves is not None
    fifths = (2 ** each.log_within(CRITICAL_TOLERANCE) for each in (one.curves, other.curves))
    return ratio_of_draws(*fifths), ratio_of_draws(_fewest(one), _fewest(other))


def fewest_steps(one: Scaling) -> float:
    """The fewest steps of any tested batch size, in the median of all curves."""
    return float(np.median(_fewest(one)))


def _fewest(one: Scaling) -> Floats:
    assert one.curves is not None
    fewest: Floats = 2 ** one.curves.log_steps(one.curves.places).min(axis=1)
    return fewest
