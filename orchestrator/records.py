"""The nouns of the project: what a sweep is made of, as frozen values validated when made."""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

Value = float | int | str | bool
"""A setting of one metaparameter."""

Scale = Literal["linear", "log", "reverse_log"]

Side = Literal["low", "high"]

When = Mapping[str, tuple[Value, ...]]
"""Other metaparameters, and the values of theirs with which one is there at all."""

Status = Literal["reached", "exhausted", "dominated", "diverged", "failed"]
"""How a trial ended: passed every goal; spent its budget; could no longer win; its loss or a metric
stopped being finite; its worker kept dying or its code raised."""

STATUSES: tuple[Status, ...] = get_args(Status)


class BadInput(ValueError):
    """Something a user wrote can't be used. The message says the rule, the value and the remedy."""


class MissingData(BadInput):
    """A data set is not on this machine."""


class SweepFailed(RuntimeError):
    """Nothing but failures came of a sweep; the message ends with the last one's error."""


def unknown(kind: str, name: str, known: Iterable[str]) -> BadInput:
    """The error for a name that is in no registry: lists the known ones, closest first."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    listed = ", ".join(close + [other for other in names if other not in close])
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return BadInput(f"Unknown {kind} {name!r}. {hint}Known: {listed or 'none'}.")


def derive_seed(*parts: int | str) -> int:
    """A seed that is a function of `parts` alone, the same on every machine (63 bits)."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True, kw_only=True)
class Range:
    """An interval of one metaparameter, and the scale on which it is uniform."""

    low: float
    high: float
    scale: Scale = "linear"
    """`log`: log(x) is uniform. `reverse_log`: log(1 - x) is, which suits momentum near one."""
    integer: bool = False
    limits: tuple[float | None, float | None] = (None, None)
    """How far a search may widen it; below 0 never what begins at 0 or above."""
    when: When | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise BadInput(f"`low` and `high` must be finite, but got {self.low:g}, {self.high:g}.")
        if self.low > self.high:
            raise BadInput(
                f"`low <= high` must hold, but got low={self.low:g}, high={self.high:g}."
            )
        if self.scale == "log" and self.low <= 0:
            raise BadInput(f"A log scale needs `low > 0`, but got low={self.low:g}.")
        if self.scale == "reverse_log" and self.high >= 1:
            raise BadInput(f"A reverse_log scale needs `high < 1`, but got high={self.high:g}.")

    def at(self, fraction: float) -> float | int:
        """The value that lies `fraction` (0 to 1) of the way from low to high on the scale."""
        value: float
        if self.scale == "log":
            value = self.low * (self.high / self.low) ** fraction
        elif self.scale == "reverse_log":
            value = 1 - (1 - self.low) * ((1 - self.high) / (1 - self.low)) ** fraction
        else:
            value = self.low + (self.high - self.low) * fraction
        value = min(max(value, self.low), self.high)
        return round(value) if self.integer else value

    def fraction(self, value: float) -> float:
        """What `at` makes `value` of; below 0 or above 1 outside of the range."""
        low, high, at = (self._position(number) for number in (self.low, self.high, value))
        return (at - low) / (high - low) if high > low else 0.5

    def _position(self, value: float) -> float:
        if self.scale == "log":
            return math.log(value)
        return -math.log(1 - value) if self.scale == "reverse_log" else value

    def widened(self, side: Side) -> Range | None:
        """The range with a decade more on one side, on a linear scale its own width more, as far
        as the limits let it; None if they don't."""
        lowest, highest = self.limits
        if side == "low":
            if self.scale == "log":
                low = self.low / 10
            elif self.scale == "reverse_log":
                low = 1 - (1 - self.low) * 10
            else:
                low = self.low - (self.high - self.low)
            floors = [lowest] if lowest is not None else [0.0] if self.low >= 0 else []
            low = max([low, *floors])
            return replace(self, low=low) if low < self.low else None
        if self.scale == "log":
            high = self.high * 10
        elif self.scale == "reverse_log":
            high = 1 - (1 - self.high) / 10
        else:
            high = self.high + (self.high - self.low)
        high = high if highest is None else min(high, highest)
        return replace(self, high=high) if high > self.high else None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A metaparameter that takes one of a few values."""

    options: tuple[Value, ...]
    when: When | None = None

    def __post_init__(self) -> None:
        if not self.options:
            raise BadInput("`options` must name at least one value, but it is empty.")

    def at(self, fraction: float) -> Value:
        return self.options[min(int(fraction * len(self.options)), len(self.options) - 1)]


Rule = Literal["constant", "linear", "sqrt", "half_life"]

RULES: tuple[Rule, ...] = get_args(Rule)


@dataclass(frozen=True, kw_only=True)
class ScalingRule:
    """A metaparameter that is tuned at one batch size and scaled to the others."""

    rule: Rule
    """`half_life` suits a decay such as beta2: its half-life in examples stays the same."""
    base: float
    at_batch_size: int

    def __post_init__(self) -> None:
        if self.at_batch_size < 1:
            raise BadInput(f"`at_batch_size` must be at least 1, but got {self.at_batch_size}.")
        if self.rule == "half_life" and not 0 <= self.base < 1:
            raise BadInput(f"Rule half_life needs `0 <= base < 1`, but got base={self.base:g}.")

    def at(self, batch_size: int) -> float:
        ratio = batch_size / self.at_batch_size
        match self.rule:
            case "constant":
                return self.base
            case "linear":
                return self.base * ratio
            case "sqrt":
                return self.base * math.sqrt(ratio)
            case "half_life":
                return float(self.base**ratio)


def check_kind(name: str, value: Value, default: Value) -> None:
    """Refuses a value that isn't of the default's kind: a finite number, text, or a bool."""
    if isinstance(default, (bool, str)):
        kind = "true or false" if isinstance(default, bool) else "text"
        right = type(value) is type(default)
    else:
        kind = "a finite number"
        right = type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    if not right:
        raise BadInput(f"{name!r} must be {kind}, but got {value!r}.")


Space = Mapping[str, Range | Choice | Value]
"""Metaparameter -> where it is searched; a plain value is fixed."""


NEAR_BOUND = 0.05
"""A best trial this close to an end of a range, as a share of it, may have its better beyond."""

WIDENINGS = 2
"""How often a search may widen its ranges."""


def near_bounds(space: Space, params: Mapping[str, Value]) -> list[tuple[str, Side]]:
    """The ranges near whose end a point lies, unless their limits let nothing lie beyond."""
    found: list[tuple[str, Side]] = []
    for name, entry in space.items():
        if not isinstance(entry, Range) or name not in params or entry.low == entry.high:
            continue
        fraction = entry.fraction(float(params[name]))
        sides: dict[Side, bool] = {"low": fraction < NEAR_BOUND, "high": fraction > 1 - NEAR_BOUND}
        found += [(name, side) for side, near in sides.items() if near and entry.widened(side)]
    return found


def widened_to(space: Space, points: Iterable[Mapping[str, Value]]) -> Space:
    """The space, widened as far as a search must have done it to come to `points`."""
    wide = dict(space)
    for point in points:
        for name, value in point.items():
            for _ in range(WIDENINGS):
                entry = wide.get(name)
                if isinstance(entry, Range) and not 0 <= (at := entry.fraction(float(value))) <= 1:
                    wide[name] = entry.widened("low" if at < 0 else "high") or entry
    return wide


_GOAL = re.compile(r"^\s*([\w.-]+/[\w.@-]+)\s*([<>])\s*(\S+)\s*$")


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A metric and a bound that it must go strictly past, compared in float64."""

    metric: str
    direction: Literal["<", ">"]
    bound: float

    @classmethod
    def parse(cls, text: str) -> Goal:
        match = _GOAL.match(text)
        try:
            if match is None:
                raise ValueError
            metric, direction, bound = match.groups()
            goal = cls(
                metric=metric, direction="<" if direction == "<" else ">", bound=float(bound)
            )
        except ValueError:
            raise BadInput(
                f"A goal is written SPLIT/METRIC < NUMBER or SPLIT/METRIC > NUMBER, "
                f"for example 'val/error < 0.04', but got {text!r}."
            ) from None
        if not math.isfinite(goal.bound):
            raise BadInput(f"A goal's bound must be finite, but got {text!r}.")
        return goal

    def passed(self, value: float | None) -> bool:
        if value is None:
            return False
        return value < self.bound if self.direction == "<" else value > self.bound

    def __str__(self) -> str:
        return f"{self.metric} {self.direction} {self.bound!r}"


@dataclass(frozen=True, kw_only=True)
class EvaluationGrid:
    """The steps at which a trial is evaluated; the same for every trial of a study."""

    spacing: float
    """Distance between evaluations, relative to the step reached."""
    min_gap: int
    """Fewest steps between evaluations."""

    def __post_init__(self) -> None:
        if not 0 <= self.spacing < math.inf:
            raise BadInput(f"`spacing` must be finite and at least 0, but got {self.spacing:g}.")
        if self.min_gap < 1:
            raise BadInput(f"`min_gap` must be at least 1 step, but got {self.min_gap}.")

    def after(self, step: int) -> int:
        """The evaluation that follows the one at `step`."""
        return max(math.ceil(step * (1 + self.spacing)), step + self.min_gap)


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What is measured beyond the metrics of the validation and test splits, on request."""

    train_examples: int = 0
    """`train/*` is evaluated on so many examples of the training set, always the same ones."""
    gradient_norm: bool = False
    """`batch/gradient_norm`: of the last batch before the evaluation."""
    distance: bool = False
    """`weights/distance`: the Euclidean distance of the weights from their initial values."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """When a trial whose numbers are still finite counts as diverged: a loss was `above` times its
    first measured value for so many `evaluations` in a row."""

    above: float = 1000.0
    evaluations: int = 10


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """How the points of a study are chosen."""

    algorithm: str = "halton"
    """halton, sobol, random; points: those listed, no others; tpe, gp, cmaes or the import path of
    a sampler: Optuna's."""
    launches: int | None = None
    """At most so many trials, divergent ones included; None: three times `Study.trials`."""
    generation: int = 8
    """Trials between two times that Optuna is told how they ended."""
    extend: bool = False
    """Widen a range near whose end the best trial lies."""
    points: tuple[Mapping[str, Value], ...] = ()


@dataclass(frozen=True, kw_only=True, order=True)
class StudyKey:
    """What tells one study of a run from another."""

    workload: str
    recipe: str
    batch_size: int

    def __str__(self) -> str:
        return f"{self.workload} {self.recipe} batch size {self.batch_size}"


@dataclass(frozen=True, kw_only=True)
class Study:
    """One search: a workload, a recipe and a batch size, with all that its trials share."""

    workload: str
    recipe: str
    optimizer: str
    batch_size: int
    goals: tuple[Goal, ...]
    """A trial has reached them once it has passed all of them."""
    budget_steps: int
    grid: EvaluationGrid
    space: Space
    trials: int
    """Points that do not diverge."""
    search: SearchPlan = SearchPlan()
    train_size: int | None = None
    """Examples in an epoch; None where that isn't known or there is no end to them."""
    repeats: int = 0
    """How often the best trial is run again, with other seeds."""
    inherit: float | None = None
    """The budget is at first so many times the steps that the next smaller batch size needed."""
    stop_at_goal: bool = True
    stop_dominated: bool = True
    """End a trial once nothing it may still do can change the frontier."""
    extras: Extras = Extras()
    divergence: Divergence = Divergence()

    @property
    def key(self) -> StudyKey:
        return StudyKey(workload=self.workload, recipe=self.recipe, batch_size=self.batch_size)

    @property
    def launches(self) -> int:
        """The most trials that its search may launch, repeats and widening aside."""
        if self.search.algorithm == "points":
            return len(self.search.points)
        return self.search.launches or 3 * self.trials

    def following(self, step: int) -> int:
        """The step of the measurement after the one at `step`."""
        return min(self.grid.after(step), self.budget_steps)


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
    resumed_steps: int = 0
    """Of `steps`, those that were taken over from a checkpoint."""
    resumed_seconds: float = 0.0
    """And of the training and evaluation."""


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


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What other trainings are held against: a recipe at one batch size."""

    recipe: str
    batch_size: int

    @classmethod
    def parse(cls, text: str) -> Baseline:
        recipe, _, size = text.rpartition("@")
        if not recipe or not size.isdecimal() or int(size) < 1:
            raise BadInput(
                f"A baseline is written RECIPE@BATCH_SIZE, for example linear_rule@256, but got "
                f"{text!r}."
            )
        return cls(recipe=recipe, batch_size=int(size))

    @property
    def key(self) -> tuple[str, int]:
        return self.recipe, self.batch_size

    def __str__(self) -> str:
        return f"{self.recipe}@{self.batch_size}"
