"""A number with its interval, as every answer has it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number and, where one could be computed, its 90 % interval."""

    value: float
    low: float | None = None
    high: float | None = None
    """Infinite where nothing bounds it."""
