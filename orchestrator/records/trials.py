"""Trials: one training of a study, its measurements and its outcome."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cache
from typing import Literal, get_args

from orchestrator.records.ranges import Value
from orchestrator.records.roles import Role, settings_of
from orchestrator.records.studies import Study, StudyKey

Status = Literal["reached", "exhausted", "dominated", "paused", "diverged", "failed"]
"""How a trial ended.

`reached`: it passed all goals. `exhausted`: it spent its budget. `dominated`: it could no longer be
among the best trials that its study keeps. `paused`: it came to the limit up to which all trials of
its study are trained first, and may go on from there. `diverged`: its loss or a metric stopped
being finite, or its loss grew too far. `failed`: its worker died, or its code raised, at every
attempt.
"""

STATUSES: tuple[Status, ...] = get_args(Status)


def best_by_median(
    choosing: Mapping[int, Sequence[float]], judging: Mapping[int, Sequence[float]]
) -> int | None:
    """The trial, the first of equal ones, whose choosing repeats have the lowest median of steps.
    If half of its judging repeats missed the goal, it was chosen for its luck, and the next one
    takes its place, as long as there is one. `judging` has only those that are all there."""
    medians = {trial: statistics.median_high(of) for trial, of in choosing.items() if of}
    in_order = sorted(medians, key=medians.__getitem__)
    judged = {trial: statistics.median(of) for trial, of in judging.items() if of}
    known = (one for one in in_order if math.isfinite(judged.get(one, medians[one])))
    return next(known, next(iter(in_order), None))


def derive_seed(*parts: int | str) -> int:
    """Derives a seed of 63 bits from `parts` alone. It is the same on every machine."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


@cache
def _of_no_course() -> list[str]:
    """Fields of a study that the course of a trial does not depend on."""
    roles = {name: role for name, (_, role) in settings_of(Study).items()}
    return [name for name, role in roles.items() if role not in (Role.COURSE, Role.END)]


@dataclass(frozen=True, kw_only=True, order=True)
class TrialKey:
    """The identity of a trial within a run."""

    study: StudyKey
    index: int
    repeat: int = 0

    def __str__(self) -> str:
        again = f" repeat {self.repeat}" if self.repeat else ""
        return f"{self.study} trial {self.index}{again}"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training of a study: a point of its search space and a seed."""

    study: Study
    index: int
    """Number of the trial within its study, from 0 on."""
    seed: int
    params: Mapping[str, Value]
    repeat: int = 0
    """0: a trial of the search. From 1 on: a repeat, which trains the point with another seed."""

    @property
    def key(self) -> TrialKey:
        return TrialKey(study=self.study.key, index=self.index, repeat=self.repeat)

    @property
    def measures_noise(self) -> bool:
        """Whether the noise scale of the trial's gradient is measured."""
        when = self.study.extras.noise_scale
        return when == "always" or (when == "repeats" and self.repeat > 0)

    @property
    def judges(self) -> bool:
        """Whether it measures its point, and had no part in choosing it."""
        study = self.study
        return study.repeats > 0 if study.is_one_point else self.repeat > study.choosing

    @property
    def stays(self) -> bool:
        """Whether it trains on after its goals, until they have held or `STAYS` times as long."""
        return self.study.repeats_stay and self.judges

    @property
    def kind(self) -> frozenset[tuple[str, Value | None]]:
        """The names of the metaparameters, and all values that aren't numbers. Only trials that
        have these in common can be trained as one model."""
        return frozenset(
            (name, value if isinstance(value, bool | str) else None)
            for name, value in self.params.items()
        )

    @property
    def identity(self) -> str:
        """A digest of everything that the trial's course depends on."""
        document = asdict(self)
        for name in _of_no_course():
            del document["study"][name]
        text = json.dumps(document, sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def file_name(self) -> str:
        """A name for what belongs to the trial. It follows from the trial alone, so that it is
        found again by any process, and in a run that has grown."""
        return f"trial-{self.index:05d}-{self.repeat}-{self.identity}"

    @property
    def settings(self) -> str:
        """The metaparameters as text, NAME=VALUE."""
        text = ", ".join(
            f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self.params.items()
        )
        return text or "the defaults of its library"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One evaluation in a trial."""

    step: int
    """Number of updates before the evaluation."""
    seconds: float
    """Seconds that the slowest rank has spent training so far, without evaluation and start-up."""
    metrics: Mapping[str, float]
    """`split/metric` -> value, in float64."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a trial ended, and what it took."""

    status: Status
    steps: int
    """Number of steps that were trained, with those of all cooldowns."""
    seconds: float
    """Seconds spent training, without evaluation and start-up. Of a program: seconds from its first
    report to its last one."""
    evaluation_seconds: float = 0.0
    """Seconds spent evaluating, which are not part of `seconds`. Of a program, whose evaluations
    can't be told apart: seconds before its first report and after its last one."""
    error: str | None = None
    """The last lines of the error of a failed trial."""
    micro_batch: int | None = None
    """Most examples that a rank put through the model at once; None: its whole slice."""
    memory: int | None = None
    """Most bytes that the first rank held at once: of the GPU or, without one, of its process."""
    died: bool = False
    """Whether the process of a failed trial was lost. Another attempt may then succeed."""
    resumed_steps: int = 0
    """Number of `steps` that were taken over from a checkpoint."""
    resumed_seconds: float = 0.0
    """Seconds of training and evaluation that were taken over from a checkpoint."""
    width: int = 1
    """Number of slots of the stack that trained the trial, whose seconds are its share."""
    open_from: int | None = None
    """First step at which the end of a cooldown might have been measured next. None for trials that
    are not cooled down, and if there was no other cooldown."""

    @property
    def own_seconds(self) -> float:
        """Seconds of training and evaluation since the trial was last started."""
        return self.seconds + self.evaluation_seconds - self.resumed_seconds


@dataclass(frozen=True, kw_only=True)
class FinishedTrial:
    """A trial that ended, with its outcome and all its measurements. The store writes these."""

    trial: Trial
    outcome: Outcome
    measurements: tuple[Measurement, ...] = ()
    ranks: int = 1
    started: float | None = None
    """Wall-clock time of the start, in seconds since 1970 (Unix time)."""
    where: str | None = None
    """Machine and process of the first rank, written MACHINE:PROCESS."""


def the_only(
    events: Generator[tuple[Trial, Measurement | FinishedTrial | None], None, None],
) -> Generator[Measurement, None, Outcome]:
    """Yields the measurements of the only trial, and returns its outcome."""
    with closing(events):
        for _, event in events:
            if isinstance(event, FinishedTrial):
                return event.outcome
            if event is not None:
                yield event
    raise AssertionError("a trial ends with an outcome")
