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

    spans: list[tuple[float, float]] = field(default_factory=list)
    """Start of each trial, seconds since the epoch, and what it trained and evaluated since, times
    its ranks."""
    examples: Counter[str] = field(default_factory=Counter)
    """Study -> how many were trained on, over all trials."""
    last_start: float = 0.0
    """When a trial was last handed out: from then on slots may have nothing left to do."""

    def add(self, finished: FinishedTrial) -> tuple[int, float]:
        """Returns the examples and the seconds of ranks that it took."""
        outcome, study = finished.outcome, finished.trial.study
        examples = (outcome.steps - outcome.resumed_steps) * study.batch_size
        self.examples[str(study.key)] += examples
        seconds = outcome.seconds + outcome.evaluation_seconds - outcome.resumed_seconds
        if finished.started is not None:
            self.spans.append((finished.started, seconds * finished.ranks))
        return examples, seconds * finished.ranks

    def summary(self, ranks: int) -> dict[str, Any]:
        began = min((start for start, _ in self.spans), default=self.last_start)
        window = max(self.last_start - began, 0.0)
        busy = sum(min(seconds, max(self.last_start - start, 0)) for start, seconds in self.spans)
        return {
            "ended": time.time(),
            "trials": len(self.spans),
            "examples": self.examples.total(),
            "examples_of": dict(self.examples),
            "slots": ranks,
            "seconds": window,
            "busy_share": busy / (ranks * window) if window else None,
        }
