"""The trials of a study that can start now, in the order in which they should start."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Literal

from orchestrator.records import Choice, Range, Space, Trial, TrialKey, Value


class Waiting:
    """Orders trials so that good ones end early, since they may then end others. Trials that came
    closest to the goal so far start first. Among trials that have not been trained yet, those near
    a point that is known to be good start first."""

    def __init__(self, space: Space, gap: Callable[[TrialKey], float]) -> None:
        """`gap` returns how far from the goal a trial ended, relative to the goal's bound."""
        self._space, self._gap = space, gap
        self._trials: dict[TrialKey, Trial] = {}
        self._in_order_for: Mapping[str, Value] | Literal[False] | None = False
        """Near which point the first trials lie; None: no point; False: trials are not sorted."""

    def __len__(self) -> int:
        return len(self._trials)

    def clear(self) -> None:
        self._trials.clear()

    def add(self, trial: Trial) -> None:
        self._trials[trial.key] = trial
        self._in_order_for = False

    def take(self, near: Mapping[str, Value] | None, most: int) -> list[Trial]:
        """Removes at most `most` trials of one kind and returns them, first those near `near`."""
        if near != self._in_order_for:
            order = sorted(
                self._trials, key=lambda key: (self._gap(key), self._distance(key, near), key)
            )
            self._trials = {key: self._trials[key] for key in order}
            self._in_order_for = near
        kind = next(iter(self._trials.values())).kind
        same_kind = (key for key, trial in self._trials.items() if trial.kind == kind)
        chosen = [*itertools.islice(same_kind, most)]
        return [self._trials.pop(key) for key in chosen]

    def _distance(self, key: TrialKey, near: Mapping[str, Value] | None) -> float:
        if near is None:
            return 0.0
        point, total = self._trials[key].params, 0.0
        for name, entry in self._space.items():
            here, there = point.get(name), near.get(name)
            if isinstance(entry, Choice) or here is None or there is None:
                total += here != there
            elif isinstance(entry, Range):
                total += (entry.fraction(float(here)) - entry.fraction(float(there))) ** 2
        return total
