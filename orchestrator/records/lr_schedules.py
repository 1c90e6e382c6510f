"""Learning-rate schedules: the factor on the learning rate as a function of the step.

Every schedule has an explicit horizon, the study's full budget, so its shape doesn't depend on
where a trial happens to stop. A warmup goes in front of any decay, which then takes the steps that
are left. All settings are metaparameters: a search may tune them like the learning rate itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from orchestrator.records import BadInput, Choice, Range, Space, Study, Value, unknown

Factor = Callable[[int], float]
"""Step (0 is the first update) -> what the learning rate is multiplied with."""


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """A decay from 1 as `progress` goes from 0 to 1."""

    at: Callable[[float, Mapping[str, float]], float]
    defaults: Mapping[str, float]
    """The settings it takes, beside those of every decay."""


def _to_end(remaining: float, settings: Mapping[str, float]) -> float:
    """From 1 to the end factor as `remaining` goes from 1 to 0."""
    return settings["end_factor"] + (1 - settings["end_factor"]) * remaining


def _linear(progress: float, settings: Mapping[str, float]) -> float:
    return _to_end(1 - progress, settings)


def _polynomial(progress: float, settings: Mapping[str, float]) -> float:
    return _to_end((1 - progress) ** settings["power"], settings)


def _cosine(progress: float, settings: Mapping[str, float]) -> float:
    return _to_end((1 + math.cos(math.pi * progress)) / 2, settings)


def _cosine_restarts(progress: float, settings: Mapping[str, float]) -> float:
    if progress >= 1:
        return settings["end_factor"]
    return _cosine(settings["cycles"] * progress % 1, settings)


def _cyclical(progress: float, settings: Mapping[str, float]) -> float:
    """Triangles: each cycle starts and ends at the end factor and peaks half-way."""
    position = settings["cycles"] * progress % 1 if progress < 1 else 0.0
    return _to_end(1 - abs(2 * position - 1), settings)


def _step(progress: float, settings: Mapping[str, float]) -> float:
    """Multiplied by the drop at each of equally spaced points inside the decay."""
    drops = min(int(progress * (settings["drops"] + 1)), settings["drops"])
    return float(settings["drop_factor"] ** drops)


DECAYS: dict[str, _Shape] = {
    "constant": _Shape(at=lambda progress, settings: 1.0, defaults={}),
    "linear": _Shape(at=_linear, defaults={"end_factor": 0.0}),
    "polynomial": _Shape(at=_polynomial, defaults={"end_factor": 0.0, "power": 2.0}),
    "cosine": _Shape(at=_cosine, defaults={"end_factor": 0.0}),
    "cosine_restarts": _Shape(at=_cosine_restarts, defaults={"end_factor": 0.0, "cycles": 4}),
    "cyclical": _Shape(at=_cyclical, defaults={"end_factor": 0.1, "cycles": 4}),
    "step": _Shape(at=_step, defaults={"drop_factor": 0.1, "drops": 2}),
}

_LENGTHS = ("decay_steps", "decay_fraction")
_WARMUPS = ("warmup_steps", "warmup_epochs", "warmup_fraction")
SCHEDULE_SETTINGS = frozenset(
    ["decay", "warmup_shape", *_LENGTHS, *_WARMUPS]
    + [name for shape in DECAYS.values() for name in shape.defaults]
)
"""Every metaparameter that belongs to the schedule."""


def check_schedule(names: Iterable[str], decays: Iterable[Value]) -> None:
    """Refuses settings that none of `decays`, the shapes to choose from, would use."""
    given = set(names) & SCHEDULE_SETTINGS
    used = {"decay", *_WARMUPS}
    for decay in decays:
        if decay not in DECAYS:
            raise unknown("decay", str(decay), DECAYS)
        used.update(DECAYS[str(decay)].defaults)
        if decay != "constant":
            used.update(_LENGTHS)
    if given & set(_WARMUPS):
        used.add("warmup_shape")
    if "warmup_shape" in given - used:
        raise BadInput(f"'warmup_shape' has no effect without one of {', '.join(_WARMUPS)}.")
    for name in sorted(given - used):
        shapes = ", ".join(map(str, decays))
        raise BadInput(f"{name!r} has no effect with decay {shapes!r}: leave it out.")
    for group in (_LENGTHS, _WARMUPS):
        if len(given & set(group)) > 1:
            raise BadInput(f"Give only one of {', '.join(sorted(given & set(group)))}.")


def tied_to_horizon(
    space: Space, *, horizon: int, steps_per_epoch: float | None
) -> tuple[str, Value] | None:
    """A setting, and a value of it in `space`, with which a training of more steps than `horizon`
    would have other learning rates within these; None if there is none."""
    length = space.get("decay_steps")
    if length is None or getattr(length, "when", None) is not None:
        for decay in _values(space, "decay"):
            if decay != "constant":
                return "decay", decay
    units = {"warmup_steps": 1, "warmup_epochs": steps_per_epoch or 0, "warmup_fraction": math.inf}
    for name, steps in units.items():
        for warmup in _values(space, name):
            if float(warmup) > 0 and float(warmup) * steps > horizon:
                return name, warmup
    return None


def _values(space: Space, name: str) -> tuple[Value, ...]:
    """The values that a setting may take; of a range, the highest."""
    entry = space.get(name)
    if entry is None:
        return ()
    if isinstance(entry, Choice):
        return entry.options
    return (entry.high if isinstance(entry, Range) else entry,)


def make_schedule(
    params: Mapping[str, Value], *, horizon: float, steps_per_epoch: float | None
) -> Callable[[float], float]:
    """The factor for each step of a training of `horizon` steps. Settings of shapes other than the
    chosen one are left alone: `check_schedule` refuses those that no trial would use."""
    settings = {name: value for name, value in params.items() if name in SCHEDULE_SETTINGS}
    decay = str(settings.pop("decay", "constant"))
    if decay not in DECAYS:
        raise unknown("decay", decay, DECAYS)
    shape_of_warmup = settings.pop("warmup_shape", "linear")
    if shape_of_warmup not in ("linear", "cosine"):
        raise unknown("warmup_shape", str(shape_of_warmup), ("linear", "cosine"))
    numbers = {name: _number(name, value) for name, value in settings.items()}
    warmup = _warmup_steps(numbers, horizon, steps_per_epoch)
    length = numbers.get("decay_steps", numbers.get("decay_fraction", 1.0) * (horizon - warmup))
    shape = DECAYS[decay]
    chosen = {
        **shape.defaults,
        **{name: numbers[name] for name in shape.defaults if name in numbers},
    }

    def factor(step: float) -> float:
        if step < warmup:
            risen = (step + 1) / (warmup + 1)
            return risen if shape_of_warmup == "linear" else (1 - math.cos(math.pi * risen)) / 2
        return shape.at(min((step - warmup) / length, 1.0) if length > 0 else 1.0, chosen)

    return factor


def schedule_of(study: Study, params: Mapping[str, Value], size: int | None) -> Factor | None:
    """What the learning rate of a trial with these metaparameters is multiplied with; None where it
    stays as it is. `size`: examples in an epoch. Where batches grow, decay and warmup go by
    examples: a step counts as so many of the first batch size."""
    if study.batch_schedule is None and not SCHEDULE_SETTINGS & params.keys():
        return None
    batches, first = study.batches, study.batches.first
    factor = make_schedule(
        params,
        horizon=batches.examples(study.budget_steps) / first,
        steps_per_epoch=None if size is None else size / first,
    )
    return lambda step: batches.stage(step).factor * factor(batches.examples(step) / first)


def _warmup_steps(
    numbers: Mapping[str, float], horizon: float, steps_per_epoch: float | None
) -> float:
    if "warmup_epochs" in numbers:
        if steps_per_epoch is None:
            raise BadInput("'warmup_epochs' needs a finite training set; use 'warmup_steps'.")
        return min(numbers["warmup_epochs"] * steps_per_epoch, horizon)
    if "warmup_fraction" in numbers:
        return numbers["warmup_fraction"] * horizon
    return min(numbers.get("warmup_steps", 0), horizon)


def _number(name: str, value: Value) -> float:
    if isinstance(value, (bool, str)) or not math.isfinite(value) or value < 0:
        raise BadInput(f"{name!r} must be a number from 0 up, but got {value!r}.")
    if name.endswith("_fraction") and value > 1:
        raise BadInput(f"{name!r} must be at most 1, but got {value!r}.")
    if name in ("cycles", "drops") and (value < 1 or value % 1):
        raise BadInput(f"{name!r} must be a whole number from 1 up, but got {value!r}.")
    return float(value)
