"""At which place on which scales the workloads of a run stand: how much data, how large a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from orchestrator.records import wrong_value
from orchestrator.results.store import Run

DATA, MODEL = "data", "model"
"""The names of the scales that published laws are about: the amount of training data, and the
number of parameters."""


def scales_of(run: Run) -> dict[str, dict[str, float]]:
    """The place of each workload, by the name of the scale. Empty if the run names no scales."""
    told: Any = run.sweep().get("scales") or {}
    rule = "a mapping of workloads to numbers above 0, by the name of the scale"
    if not isinstance(told, Mapping):
        raise wrong_value(f"`scales` of {run.place}", rule, told)
    found: dict[str, dict[str, float]] = {}
    for workload, places in told.items():
        if not isinstance(places, Mapping) or not all(map(_is_place, places.values())):
            raise wrong_value(f"`scales` of {workload} in {run.place}", rule, places)
        found[str(workload)] = {str(name): float(place) for name, place in places.items()}
    return found


def _is_place(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf
