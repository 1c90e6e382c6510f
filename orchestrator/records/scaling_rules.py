"""Rules by which a metaparameter that was tuned at one batch size follows the batch size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from orchestrator.records.errors import BadInput, wrong_value
from orchestrator.records.ranges import LARGEST, SMALLEST
from orchestrator.records.studies import MANY

Rule = Literal["constant", "linear", "sqrt", "power", "half_life", "one_minus_linear", "timescale"]

RULES: tuple[Rule, ...] = get_args(Rule)

NUMBERS: dict[str, tuple[float, float]] = {
    "base": (0, LARGEST),
    "at_batch_size": (1, MANY),
    "exponent": (-10, 10),
    **dict.fromkeys(("tokens", "tokens_per_example", "tau"), (SMALLEST, LARGEST)),
}
"""Number -> the least and the most that it may be, so that no value overflows."""

LONGEST = 1 - 1e-9
"""Largest `base` of a decay: such an average looks back on a billion steps."""

_TUNED = ("base", "at_batch_size")

FORMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "power": ((*_TUNED, "exponent"),),
    "half_life": (_TUNED, ("tokens", "tokens_per_example")),
    "timescale": (_TUNED, ("tau",)),
}
"""Rule -> the sets of numbers of which it needs one. Any other rule needs the first two."""

RateAt = Callable[[float], float]
"""The learning rate at a batch size."""


@dataclass(frozen=True, kw_only=True)
class ScalingRule:
    """A metaparameter whose value at each batch size follows from a few numbers."""

    rule: Rule
    """How the value follows the batch size. `half_life` suits a decay such as beta2: its half-life
    in examples stays the same. `one_minus_linear` multiplies 1 - value by the growth of the batch
    size. `timescale` suits weight decay: B / (learning rate x weight decay), in examples, stays the
    same or, with `tau`, its share of the examples that a training is for."""
    base: float | None = None
    """The value at the batch size `at_batch_size`."""
    at_batch_size: float | None = None
    exponent: float | None = None
    tokens: float | None = None
    """The half-life in tokens."""
    tokens_per_example: float | None = None
    tau: float | None = None
    """The timescale itself, as a share of a training."""
    low: float = -math.inf
    """The lowest value, whatever the rule says."""
    high: float = math.inf

    def __post_init__(self) -> None:
        forms = FORMS.get(self.rule, (_TUNED,))
        given = {name: n for name in NUMBERS if (n := getattr(self, name)) is not None}
        if (*given,) not in forms:
            raise BadInput(
                f"rule {self.rule} needs {', or '.join(map(' and '.join, forms))}, but got "
                f"{' and '.join(given) or 'none of them'}.",
                code="missing-key" if any({*given} < {*form} for form in forms) else "no-effect",
            )
        for name, number in given.items():
            low, high = NUMBERS[name]
            if name == "base" and self.rule in ("half_life", "one_minus_linear"):
                high = LONGEST
            if not low <= number <= high:
                raise wrong_value(f"`{name}`", f"from {low:g} to {high:.10g}", number)
        if not self.low <= self.high:
            raise BadInput(
                f"`low <= high` must hold, not {self.low:g} <= {self.high:g}.", code="range-order"
            )

    def at(self, batch_size: float, *, rate: RateAt | None = None, data: float = 0) -> float:
        """The value at a batch size. `timescale` needs the learning rates, and the number of
        examples that a training is for."""
        base, tuned_at = self.base or 0.0, self.at_batch_size or batch_size
        ratio = batch_size / tuned_at
        if self.rule == "half_life":
            per_step = batch_size * (self.tokens_per_example or 0)
            value = 0.5 ** (per_step / self.tokens) if self.tokens else base**ratio
        elif self.rule == "one_minus_linear":
            # Once a batch has as many examples as the average looks back on, nothing is left.
            value = max(1 - (1 - base) * ratio, 0.0)
        elif self.rule == "timescale":
            assert rate is not None
            tuned = base * ratio * rate(tuned_at)
            value = (batch_size / self.tau / data if self.tau else tuned) / rate(batch_size)
        elif self.rule == "sqrt":
            value = base * math.sqrt(ratio)
        else:
            exponents = {"constant": 0, "linear": 1, "power": self.exponent or 0}
            value = base * ratio ** exponents[self.rule]
        value = min(max(value, self.low), self.high)
        if not abs(value) <= LARGEST:
            raise wrong_value(f"rule {self.rule} at batch size {batch_size:g}", "finite", value)
        return float(value)
