"""What Ray's dashboard and Prometheus are told of a sweep, by the process that runs it."""

from __future__ import annotations

from urllib.parse import quote

from ray.util.metrics import Counter, Gauge

from orchestrator.records import FinishedTrial, StudyKey, TrialKey

STUDY = ("sweep", "workload", "recipe", "batch_size")

ASCII = "".join(map(chr, range(0x20, 0x7F)))
"""Ray takes no other characters in labels."""


class Metrics:
    """Exported by every Ray node under these names with `ray_` before them and, of what only grows,
    `_total` behind. Examples per second and the busy share are rates of them (docs/search.md)."""

    def __init__(self, sweep: str, slots: int) -> None:
        self._sweep = {"sweep": _label(sweep)}
        self._trials = Gauge(
            "orchestrate_trials", "Trials that were trained, by how that ended.", (*STUDY, "status")
        )
        self._examples = Counter("orchestrate_examples", "Examples trained on.", STUDY)
        self._busy = Counter(
            "orchestrate_busy_seconds", "Of ranks that train or evaluate.", ("sweep",)
        )
        self._slots = Gauge("orchestrate_slots", "Ranks that can train at once.", ("sweep",))
        self._best = Gauge("orchestrate_best_steps", "Fewest steps to all goals so far.", STUDY)
        self._ranks = slots
        self._status: dict[TrialKey, str] = {}
        self._counts: dict[tuple[StudyKey, str], int] = {}

    def add(self, finished: FinishedTrial, *, examples: int, busy_seconds: float) -> None:
        """A trial that ended, or was set aside and may go on; with what it trained just now."""
        name, status = finished.trial.key, finished.outcome.status
        key = name.study
        if (before := self._status.get(name)) is not None:
            self._count(key, before, -1)
        self._status[name] = status
        self._count(key, status, 1)
        # Each time: what is set before Ray has begun to export is lost.
        self._slots.set(self._ranks, self._sweep)
        # Ray takes nothing that isn't above 0.
        if examples > 0:
            self._examples.inc(examples, self._tags(key))
        if busy_seconds > 0:
            self._busy.inc(busy_seconds, self._sweep)

    def over(self, key: StudyKey) -> None:
        """What was paused of a study won't go on."""
        if paused := self._counts.get((key, "paused"), 0):
            self._count(key, "paused", -paused)
            self._count(key, "dominated", paused)

    def _count(self, key: StudyKey, status: str, change: int) -> None:
        count = self._counts.get((key, status), 0) + change
        self._counts[key, status] = count
        self._trials.set(count, {**self._tags(key), "status": status})

    def best(self, key: StudyKey, steps: int | None) -> None:
        if steps is not None:
            self._best.set(steps, self._tags(key))

    def _tags(self, key: StudyKey) -> dict[str, str]:
        return {
            **self._sweep,
            "workload": _label(key.workload),
            "recipe": _label(key.recipe),
            "batch_size": str(key.batch_size),
        }


def _label(name: str) -> str:
    """A name with whatever isn't ASCII as in an address: %C3%B6 for ö."""
    return quote(name, safe=ASCII)
