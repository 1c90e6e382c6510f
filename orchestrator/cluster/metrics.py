"""Metrics of a sweep for Ray's dashboard and Prometheus, exported by the process that runs it."""

from __future__ import annotations

from urllib.parse import quote

from ray.util.metrics import Counter, Gauge

from orchestrator.records import FinishedTrial, StudyKey, TrialKey
from orchestrator.search import Search
from orchestrator.sweeping.usage import trained

STUDY = ("sweep", "workload", "recipe", "batch_size")

ASCII = "".join(map(chr, range(0x20, 0x7F)))
"""The characters that Ray accepts in labels."""


class Metrics:
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
        self._counts: dict[tuple[StudyKey, str], int] = {}

    def hear(self, finished: FinishedTrial, search: Search) -> None:
        """Adds a trial that ended, or was paused and may go on, with what it trained since it was
        started last."""
        name, status = finished.trial.key, finished.outcome.status
        key = name.study
        if (before := self._status.get(name)) is not None:
            self._count(key, before, -1)
        self._status[name] = status
        self._count(key, status, 1)
        # Set each time, because a value that is set before Ray has begun to export is lost.
        self._slots.set(self._ranks, self._sweep)
        examples, rank_seconds = trained(finished)
        # Ray accepts only increments above 0.
        if examples > 0:
            self._examples.inc(examples, self._tags(key))
        if rank_seconds > 0:
            self._busy.inc(rank_seconds, self._sweep)
        if (steps := search.frontier_step()) is not None:
            self._best.set(steps, self._tags(key))
        if search.done:
            self._end(key)

    def _end(self, key: StudyKey) -> None:
        """Takes note that the paused trials of a study won't go on."""
        if paused := self._counts.get((key, "paused"), 0):
            self._count(key, "paused", -paused)
            self._count(key, "dominated", paused)

    def _count(self, key: StudyKey, status: str, change: int) -> None:
        count = self._counts.get((key, status), 0) + change
        self._counts[key, status] = count
        self._trials.set(count, {**self._tags(key), "status": status})

    def _tags(self, key: StudyKey) -> dict[str, str]:
        return {
            **self._sweep,
            "workload": _label(key.workload),
            "recipe": _label(key.recipe),
            "batch_size": str(key.batch_size),
        }


def _label(name: str) -> str:
    """A name whose characters outside of ASCII are escaped as in a URL: %C3%B6 for ö."""
    return quote(name, safe=ASCII)
