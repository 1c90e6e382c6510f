"""One training of a study, and what came of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from orchestrator.records.ranges import Value
from orchestrator.records.studies import Study, StudyKey

Status = Literal["reached", "exhausted", "dominated", "paused", "diverged", "failed"]
"""How a trial ended: passed every goal; spent its budget; could no longer win; came to the limit up
to which all are trained first, and may go on from there; its loss or a metric stopped being finite;
its worker kept dying or its code raised."""

STATUSES: tuple[Status, ...] = get_args(Status)


def derive_seed(*parts: int | str) -> int:
    """A seed that is a function of `parts` alone, the same on every machine (63 bits)."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True, kw_only=True, order=True)
class TrialKey:
    """What tells one trial of a run from another."""

    study: StudyKey
    index: int
    repeat: int = 0

    def __str__(self) -> str:
        again = f" repeat {self.repeat}" if self.repeat else ""
        return f"{self.study} trial {self.index}{again}"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training run of one study: a point of its space and a seed."""

    study: Study
    index: int
    """Counts from 0 within the study."""
    seed: int
    params: Mapping[str, Value]
    repeat: int = 0
    """0: the search's own; from 1 up: the same point again with another seed."""

    @property
    def key(self) -> TrialKey:
        return TrialKey(study=self.study.key, index=self.index, repeat=self.repeat)

    @property
    def measures_noise(self) -> bool:
        """Whether the noise scale of its gradient is measured, too."""
        of = self.study.extras.noise_scale
        return of == "always" or (of == "repeats" and self.repeat > 0)

    @property
    def kind(self) -> frozenset[tuple[str, Value | None]]:
        """What trials must share to be trained as one model: the names of their metaparameters,
        and all values that aren't numbers."""
        return frozenset(
            (name, value if isinstance(value, bool | str) else None)
            for name, value in self.params.items()
        )

    @property
    def settings(self) -> str:
        """Its metaparameters in words, as NAME=VALUE."""
        said = ", ".join(
            f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self.params.items()
        )
        return said or "the defaults of its library"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One evaluation inside a trial."""

    step: int
    seconds: float
    """Spent training so far: the slowest rank's, evaluation and start-up excluded."""
    metrics: Mapping[str, float]
    """`split/metric` -> value, in float64."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a trial ended."""

    status: Status
    steps: int
    seconds: float
    evaluation_seconds: float = 0.0
    """Spent evaluating, beside the training."""
    error: str | None = None
    """The last lines of what went wrong, for a failed trial."""
    micro_batch: int | None = None
    """Most examples a rank put through the model at once; None: its whole slice of the batch."""
    memory: int | None = None
    """Most bytes that the first rank held at once: on its GPU, or as a process without one."""
    died: bool = False
    """The process of a failed trial was lost, whatever the reason: another try may end well."""
    resumed_steps: int = 0
    """Of `steps`, those that were taken over from a checkpoint."""
    resumed_seconds: float = 0.0
    """And of the training and evaluation."""
    width: int = 1
    """Slots of the stack that it was trained in; its seconds are then its share of the stack's."""

    @property
    def own_seconds(self) -> float:
        """Of training and evaluation, since it was last begun."""
        return self.seconds + self.evaluation_seconds - self.resumed_seconds


@dataclass(frozen=True, kw_only=True)
class FinishedTrial:
    """A trial with all that was measured in it: what the store keeps."""

    trial: Trial
    outcome: Outcome
    measurements: tuple[Measurement, ...] = ()
    ranks: int = 1
    started: float | None = None
    """Wall-clock start, seconds since the epoch."""
    where: str | None = None
    """MACHINE:PROCESS of its first rank."""
