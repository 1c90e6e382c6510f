"""The type of a number with its interval, which all answers use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number and, if it could be computed, its 90 % interval."""

    value: float
    low: float | None = None
    high: float | None = None
    """Upper end of the interval; infinite if nothing bounds it."""
