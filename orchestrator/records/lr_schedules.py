"""Learning-rate schedules: the factor on the learning rate as a function of the step.

The horizon of a schedule is the study's full budget, so the schedule doesn't depend on the step at
which a trial stops. A warmup comes first, then the rate may be held, and the decay takes the
remaining steps. `inverse_sqrt` and `inverse_power` have no horizon. All settings are
metaparameters, so a search may tune them like the learning rate itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from orchestrator.records import BadInput, Choice, Range, Space, Study, Value, unknown, wrong_value
from orchestrator.records.stages import Cooldown

Factor = Callable[[int], float]
"""Function from the step (0 is the first update) to the factor on the learning rate."""


@dataclass(frozen=True)
class _Shape:
    """The shape of a decay."""

    at: Callable[[float, Mapping[str, float]], float]
    """The share left of the way from end factor up to 1, by progress (0 to 1) and settings."""
    defaults: Mapping[str, float]
    """The settings that only this shape takes, with their defaults."""
    endless: bool = False
    """Whether progress is the number of steps in units of the warmup, so that there is no end."""


def _cosine(progress: float) -> float:
    return (1 + math.cos(math.pi * progress)) / 2


def _in_cycle(progress: float, settings: Mapping[str, float]) -> float:
    return settings["cycles"] * progress % 1 if progress < 1 else 1.0


DECAYS: dict[str, _Shape] = {
    "constant": _Shape(lambda done, own: 1.0, {}, endless=True),
    "linear": _Shape(lambda done, own: 1 - done, {"end_factor": 0.0}),
    "polynomial": _Shape(
        lambda done, own: (1 - done) ** own["power"], {"end_factor": 0.0, "power": 2.0}
    ),
    "cosine": _Shape(lambda done, own: _cosine(done), {"end_factor": 0.0}),
    "cosine_restarts": _Shape(
        lambda done, own: _cosine(_in_cycle(done, own)), {"end_factor": 0.0, "cycles": 4}
    ),
    # A triangle wave: each cycle starts and ends at the end factor and peaks half-way.
    "cyclical": _Shape(
        lambda done, own: 1 - abs(2 * _in_cycle(done, own) - 1), {"end_factor": 0.1, "cycles": 4}
    ),
    # The points of the drops divide the decay into equal parts.
    "step": _Shape(
        lambda done, own: own["drop_factor"] ** min(int(done * (own["drops"] + 1)), own["drops"]),
        {"drop_factor": 0.1, "drops": 2},
    ),
    # With a warmup, this is the schedule of Vaswani et al. (2017).
    "inverse_sqrt": _Shape(lambda done, own: done**-0.5, {}, endless=True),
    "inverse_power": _Shape(lambda done, own: done ** -own["power"], {"power": 0.5}, endless=True),
}

_LENGTHS = ("decay_steps", "decay_fraction", "hold_fraction")
_WARMUPS = ("warmup_steps", "warmup_epochs", "warmup_fraction")
SCHEDULE_SETTINGS: dict[str, str] = {
    "decay": f"shape of the learning rate after warmup: constant (default), "
    f"{', '.join([*DECAYS][1:])}",
    "decay_steps": "length of the decay in steps [all steps after warmup]",
    "decay_fraction": "length of the decay as a share of the steps after warmup [1]",
    "hold_fraction": "share of the steps after warmup before the decay, which takes the rest [0]",
    "end_factor": "linear, polynomial, cosine, cosine_restarts, cyclical: last learning rate "
    "divided by the first [0; cyclical: 0.1]",
    "power": "polynomial, inverse_power: exponent of the decay [2; inverse_power: 0.5]",
    "cycles": "cosine_restarts, cyclical: number of cycles [4]",
    "drops": "step: number of drops [2]",
    "drop_factor": "step: factor on the learning rate at each drop [0.1]",
    "warmup_steps": "length of the warmup in steps [0]",
    "warmup_epochs": "length of the warmup in epochs",
    "warmup_fraction": "length of the warmup as a share of the budget",
}
"""All metaparameters that belong to the schedule, with their meaning and, in brackets, their
default."""


def check_schedule(names: Iterable[str], decays: Iterable[Value]) -> None:
    """Refuses settings that no shape in `decays`, from which trials choose, would use."""
    given = set(names) & SCHEDULE_SETTINGS.keys()
    used = {"decay", *_WARMUPS}
    for decay in decays:
        if decay not in DECAYS:
            raise unknown("decay", str(decay), DECAYS)
        used.update(DECAYS[str(decay)].defaults)
        if not DECAYS[str(decay)].endless:
            used.update(_LENGTHS)
    for name in sorted(given - used):
        shapes = ", ".join(map(str, decays))
        raise BadInput(f"Leave out {name!r}: no effect with decay {shapes!r}.", code="no-effect")
    for group in (_LENGTHS, _WARMUPS):
        if len(given & set(group)) > 1:
            raise BadInput(
                f"At most one of {', '.join(group)} may be set, but got "
                f"{' and '.join(sorted(given & set(group)))}. Leave out all but one.",
                code="not-together",
            )


def tied_to_horizon(
    space: Space, *, horizon: int, steps_per_epoch: float | None
) -> tuple[str, Value] | None:
    """A setting in `space`, and its value, by which learning rates in the first `horizon` steps
    would change if the training took more steps; None if there is no such setting."""
    if "decay_steps" not in space:
        for decay in _values(space, "decay"):
            if not DECAYS[str(decay)].endless:
                return "decay", decay
    units = {"warmup_steps": 1, "warmup_epochs": steps_per_epoch or 0, "warmup_fraction": math.inf}
    for name, steps in units.items():
        for warmup in _values(space, name):
            if float(warmup) > 0 and float(warmup) * steps > horizon:
                return name, warmup
    return None


def _values(space: Space, name: str) -> tuple[Value, ...]:
    """Returns the values that a setting may take. For a range, this is the highest value only."""
    entry = space.get(name)
    if entry is None:
        return ()
    if isinstance(entry, Choice):
        return entry.options
    return (entry.high if isinstance(entry, Range) else entry,)


def make_schedule(
    params: Mapping[str, Value], *, horizon: float, steps_per_epoch: float | None
) -> Callable[[float], float]:
    """Returns the factor for each step of a training of `horizon` steps. Settings of shapes other
    than the chosen shape are ignored: `check_schedule` refuses those that no trial would use."""
    settings = {name: value for name, value in params.items() if name in SCHEDULE_SETTINGS}
    decay = str(settings.pop("decay", "constant"))
    if decay not in DECAYS:
        raise unknown("decay", decay, DECAYS)
    numbers = {name: _number(name, value) for name, value in settings.items()}
    warmup = _warmup_steps(numbers, horizon, steps_per_epoch)
    rest = horizon - warmup
    held = numbers.get("hold_fraction", 0.0) * rest
    length = numbers.get("decay_steps", numbers.get("decay_fraction", 1.0) * rest) - held
    shape = DECAYS[decay]
    chosen = {**shape.defaults, **numbers}
    end = chosen["end_factor"] if "end_factor" in shape.defaults else 0.0

    def factor(step: float) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if shape.endless:
            return shape.at((step + 1) / (warmup + 1), chosen)
        done = step - warmup - held
        progress = min(max(done, 0.0) / length, 1.0) if length > 0 else float(done >= 0)
        return end + (1 - end) * shape.at(progress, chosen)

    return factor


def schedule_of(study: Study, params: Mapping[str, Value], size: int | None) -> Factor | None:
    """Returns the factor on the learning rate of a trial with these metaparameters; None if the
    learning rate is constant. `size` is the number of examples in an epoch. If the batch size
    grows, decay and warmup are counted in examples: a step counts as the number of steps at the
    first batch size that train on as many examples."""
    if study.batch_schedule is None and not SCHEDULE_SETTINGS.keys() & params.keys():
        return None
    batches, first = study.batches, study.batches.first
    factor = make_schedule(
        params,
        horizon=batches.examples(study.budget_steps) / first,
        steps_per_epoch=None if size is None else size / first,
    )
    return lambda step: batches.stage(step).factor * factor(batches.examples(step) / first)


def cooled(trunk: Factor | None, cooldown: Cooldown, start: int) -> Factor:
    """The factor of a cooldown from step `start` of a training whose own factor is `trunk`."""
    shape, length = DECAYS[cooldown.shape], cooldown.length(start)
    settings = {**shape.defaults, **({} if cooldown.power is None else {"power": cooldown.power})}

    def factor(step: int) -> float:
        left = shape.at(min(max(step - start, 0) / length, 1.0), settings)
        before = 1.0 if trunk is None else trunk(step)
        return before * (cooldown.end_factor + (1 - cooldown.end_factor) * left)

    return factor


COOLDOWN_SHAPES = ("linear", "cosine", "polynomial")


def warmup_of(study: Study, params: Mapping[str, Value]) -> float:
    """The steps during which the learning rate of a trial with these metaparameters rises."""
    numbers = {name: float(value) for name, value in params.items() if name in _WARMUPS}
    size = study.train_size
    per_epoch = None if size is None else size / study.batch_size
    return _warmup_steps(numbers, study.budget_steps, per_epoch) if numbers else 0.0


def _warmup_steps(
    numbers: Mapping[str, float], horizon: float, steps_per_epoch: float | None
) -> float:
    if "warmup_epochs" in numbers:
        if steps_per_epoch is None:
            raise BadInput(
                "'warmup_epochs' needs a finite training set: use 'warmup_steps'.",
                code="endless-data",
            )
        return min(numbers["warmup_epochs"] * steps_per_epoch, horizon)
    if "warmup_fraction" in numbers:
        return numbers["warmup_fraction"] * horizon
    return min(numbers.get("warmup_steps", 0), horizon)


def _number(name: str, value: Value) -> float:
    if isinstance(value, (bool, str)) or not math.isfinite(value) or value < 0:
        raise wrong_value(repr(name), "a finite number of at least 0", value)
    if name.endswith("_fraction") and value > 1:
        raise wrong_value(repr(name), "at most 1", value)
    if name in ("cycles", "drops") and (value < 1 or value % 1):
        raise wrong_value(repr(name), "a whole number of at least 1", value)
    return float(value)
