"""How well a sweep used its machines."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from orchestrator.records import FinishedTrial


@dataclass(kw_only=True)
class Usage:
    """How much of the time there was went into training and evaluating."""

    spans: list[tuple[float, float, float]] = field(default_factory=list)
    """Start and end of each trial, seconds since the epoch, and how much of that it trained and
    evaluated, times its ranks."""
    examples: Counter[str] = field(default_factory=Counter)
    """Study -> how many were trained on, over all trials."""

    def add(self, finished: FinishedTrial) -> tuple[int, float]:
        """Returns the examples and the seconds of ranks that it took."""
        outcome, study = finished.outcome, finished.trial.study
        examples = study.examples(outcome.steps) - study.examples(outcome.resumed_steps)
        self.examples[str(study.key)] += examples
        seconds = outcome.own_seconds
        if finished.started is not None:
            # Of one that shared its rank, the seconds are spread over all the time it was there.
            end = time.time() if outcome.width > 1 else finished.started + seconds
            self.spans.append((finished.started, end, seconds * finished.ranks))
        return examples, seconds * finished.ranks

    def summary(self, ranks: int) -> dict[str, Any]:
        starts = [start for start, _, _ in self.spans]
        # From when the last trial started, slots may have nothing left to do.
        last = max(starts, default=0.0)
        window = last - min(starts, default=last)
        busy = sum(
            seconds * min((last - start) / (end - start), 1.0)
            for start, end, seconds in self.spans
            if end > start
        )
        return {
            "ended": time.time(),
            "trials": len(self.spans),
            "examples": self.examples.total(),
            "examples_of": dict(self.examples),
            "slots": ranks,
            "seconds": window,
            "busy_share": busy / (ranks * window) if window else None,
        }
