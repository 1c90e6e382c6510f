"""Measures how well a sweep used its machines."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from orchestrator.records import FinishedTrial

CLOCK_SECONDS = 1.0
"""By how much the time of day may leave the time that passes before it counts as set."""


@dataclass(kw_only=True)
class Usage:
    """The share of the available time in which ranks trained and evaluated."""

    spans: list[tuple[float, float, float]] = field(default_factory=list)
    """For each trial: its start and end in seconds since the epoch, and the seconds in between in
    which it trained and evaluated, times its ranks."""
    examples: Counter[str] = field(default_factory=Counter)
    """Study -> number of examples that its trials trained on."""
    offset: float = field(default_factory=lambda: time.time() - time.monotonic())
    clock_was_set: bool = False
    """Or the machine slept. Starts can't be compared with each other then."""

    def add(self, finished: FinishedTrial) -> None:
        outcome, study = finished.outcome, finished.trial.study
        examples = study.examples(outcome.steps) - study.examples(outcome.resumed_steps)
        self.examples[str(study.key)] += examples
        self.clock_was_set |= abs(time.time() - time.monotonic() - self.offset) > CLOCK_SECONDS
        if finished.started is not None:
            # A stacked trial shared its rank, so its seconds are spread over its whole duration.
            end = time.time() if outcome.width > 1 else finished.started + outcome.own_seconds
            self.spans.append((finished.started, end, outcome.own_seconds * finished.ranks))

    def summary(self, ranks: int) -> dict[str, Any]:
        starts = [start for start, _, _ in self.spans]
        # After the start of the last trial, slots may be idle because no trial is left to start.
        last = max(starts, default=0.0)
        window = last - min(starts, default=last)
        busy = sum(
            seconds * min((last - start) / (end - start), 1.0)
            for start, end, seconds in self.spans
            if end > start
        )
        known = window and not self.clock_was_set
        return {
            "ended": time.time(),
            "trials": len(self.spans),
            "examples": self.examples.total(),
            "examples_of": dict(self.examples),
            "slots": ranks,
            "seconds": window,
            "busy_share": busy / (ranks * window) if known else None,
        }
