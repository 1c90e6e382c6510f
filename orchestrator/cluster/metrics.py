"""Metrics of a sweep for Ray's dashboard and Prometheus, exported by the process that runs it."""

from __future__ import annotations

from collections import Counter as Counts
from collections import defaultdict
from dataclasses import asdict
from urllib.parse import quote

from ray.util.metrics import Counter, Gauge

from orchestrator.records import FinishedTrial, StudyKey, TrialKey
from orchestrator.search import AnySearch
from orchestrator.sweeping.usage import trained

STUDY = ("sweep", "workload", "recipe", "batch_size")

ASCII = "".join(map(chr, range(0x20, 0x7F)))
"""The characters that Ray accepts in labels."""


class ExportedMetrics:
    """The metrics. Every Ray node exports them under these names, with the prefix `ray_` and, for
    counters, the suffix `_total`. Examples per second and the busy share are rates of counters
    (docs/search.md)."""

    def __init__(self, sweep: str, slots: int) -> None:
        self._sweep = {"sweep": _label(sweep)}
        self._trials = Gauge(
            "orchestrate_trials", "Number of trained trials, by status.", (*STUDY, "status")
        )
        self._examples = Counter(
            "orchestrate_examples", "Number of examples that were trained on.", STUDY
        )
        self._busy = Counter(
            "orchestrate_busy_seconds", "Seconds that ranks trained or evaluated.", ("sweep",)
        )
        self._slots = Gauge(
            "orchestrate_slots", "Number of ranks that can train at once.", ("sweep",)
        )
        self._best = Gauge("orchestrate_best_steps", "Fewest steps to all goals so far.", STUDY)
        self._ranks = slots
        self._status: dict[TrialKey, str] = {}
        self._counts: defaultdict[StudyKey, Counts[str]] = defaultdict(Counts)

    def hear(self, finished: FinishedTrial, search: AnySearch) -> None:
        """Adds a trial that ended, or was paused and may go on, with what it trained since it was
        started last."""
        key, status = finished.trial.key, finished.outcome.status
        study, counts = key.study, self._counts[key.study]
        of_study = {name: _label(str(value)) for name, value in asdict(study).items()}
        tags = {**self._sweep, **of_study}
        if (before := self._status.get(key)) is not None:
            counts[before] -= 1
        self._status[key] = status
        counts[status] += 1
        if search.done and counts["paused"]:  # these won't go on
            counts["dominated"] += counts["paused"]
            counts["paused"] = 0
        # Set each time, because a value that is set before Ray has begun to export is lost.
        for each, count in counts.items():
            self._trials.set(count, {**tags, "status": each})
        self._slots.set(self._ranks, self._sweep)
        examples, rank_seconds = trained(finished)
        # Ray accepts only increments above 0.
        if examples > 0:
            self._examples.inc(examples, tags)
        if rank_seconds > 0:
            self._busy.inc(rank_seconds, self._sweep)
        if (steps := search.frontier_step()) is not None:
            self._best.set(steps, tags)


def _label(name: str) -> str:
    """A name whose characters outside of ASCII are escaped as in a URL: %C3%B6 for ö."""
    return quote(name, safe=ASCII)
