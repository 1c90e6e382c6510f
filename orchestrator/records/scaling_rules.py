"""Rules by which a metaparameter that was tuned at one batch size follows the batch size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from orchestrator.records.errors import BadInput, wrong_value
from orchestrator.records.ranges import LARGEST
from orchestrator.records.studies import MANY

Rule = Literal["constant", "linear", "sqrt", "power", "half_life", "one_minus_linear", "timescale"]

RULES: tuple[Rule, ...] = get_args(Rule)

NUMBERS = (
    "base", "at_batch_size", "exponent", "examples", "tokens", "tokens_per_example", "tau",
)  # fmt: skip
_TUNED = {"base", "at_batch_size"}

FORMS: dict[str, tuple[set[str], ...]] = {
    "power": ({*_TUNED, "exponent"},),
    "half_life": (_TUNED, {"examples"}, {"tokens", "tokens_per_example"}),
    "timescale": (_TUNED, {*_TUNED, "examples"}, {"tau"}),
}
"""Rule -> the sets of numbers of which it needs one. Any other rule needs `base` and
`at_batch_size`."""

STEEPEST = 10
"""Largest exponent of a power, either way, so that no value overflows."""

RateAt = Callable[[float], float]
"""The learning rate at a batch size."""


@dataclass(frozen=True, kw_only=True)
class ScalingRule:
    """A metaparameter whose value at each batch size follows from a few numbers."""

    rule: Rule
    """How the value follows the batch size. `half_life` suits a decay such as beta2: its half-life
    in examples stays the same. `one_minus_linear` multiplies 1 - value by the growth of the batch
    size. `timescale` suits weight decay: tau = B / (learning rate x weight decay x D) stays the
    same, where D is the number of examples that a training is for."""
    base: float | None = None
    """The value at the batch size `at_batch_size`."""
    at_batch_size: float | None = None
    exponent: float | None = None
    """Exponent of `power`."""
    examples: float | None = None
    """Of `half_life`: the half-life in examples. Of `timescale`: the number of examples that `base`
    was tuned for; None if it was tuned for as many as each training has."""
    tokens: float | None = None
    """The half-life in tokens."""
    tokens_per_example: float | None = None
    tau: float | None = None
    """The timescale itself, as a share of a training."""
    of: str = "learning_rate"
    """What the learning rate is called, which `timescale` needs."""
    low: float = -math.inf
    """The lowest value, whatever the rule says."""
    high: float = math.inf

    def __post_init__(self) -> None:
        forms = FORMS.get(self.rule, (_TUNED,))
        given = {name for name in NUMBERS if getattr(self, name) is not None}
        if given not in forms:
            ways = ", or ".join(" and ".join(n for n in NUMBERS if n in form) for form in forms)
            got = " and ".join(name for name in NUMBERS if name in given) or "none of them"
            raise BadInput(
                f"rule {self.rule} needs {ways}, but got {got}.",
                code="missing-key" if any(given < form for form in forms) else "no-effect",
            )
        for name in sorted(given - {"base", "exponent"}):
            number = getattr(self, name)
            if name == "at_batch_size" and not 1 <= number <= MANY:
                raise wrong_value("`at_batch_size`", f"from 1 to {MANY:,}", number)
            if not 0 < number <= LARGEST:
                raise wrong_value(f"`{name}`", "a number above 0", number)
        if not abs(self.base or 0) <= LARGEST:
            raise wrong_value("`base`", f"a number from {-LARGEST:g} to {LARGEST:g}", self.base)
        if not abs(self.exponent or 0) <= STEEPEST:
            raise wrong_value("`exponent`", f"from {-STEEPEST} to {STEEPEST}", self.exponent)
        if self.rule in ("half_life", "one_minus_linear") and not 0 <= (self.base or 0) < 1:
            raise wrong_value(f"`base` of rule {self.rule}", "from 0 to below 1", self.base)
        if self.rule == "timescale" and self.base is not None and self.base < 0:
            raise wrong_value("`base` of rule timescale", "at least 0", self.base)
        if self.rule != "timescale" and self.of != type(self).of:
            raise BadInput("`of` is for rule: timescale only.", code="no-effect")
        if not self.low <= self.high:
            raise BadInput(
                f"`low <= high` must hold, not {self.low:g} <= {self.high:g}.", code="range-order"
            )

    def at(self, batch_size: float, *, rate: RateAt | None = None, data: float = 0) -> float:
        """The value at a batch size. `timescale` needs the learning rates, and the number of
        examples that a training is for."""
        value = min(max(self._unbounded(batch_size, rate, data), self.low), self.high)
        if not abs(value) <= LARGEST:
            raise wrong_value(f"rule {self.rule} at batch size {batch_size:g}", "finite", value)
        return value

    def _unbounded(self, batch_size: float, rate: RateAt | None, data: float) -> float:
        base, growth = self.base or 0.0, batch_size / (self.at_batch_size or batch_size)
        if self.rule == "half_life":
            half_life = self.examples or (self.tokens or 0) / (self.tokens_per_example or 1)
            return float(0.5 ** (batch_size / half_life) if half_life else base**growth)
        if self.rule == "one_minus_linear":
            # Once a batch has as many examples as the average looks back on, nothing is left.
            return max(1 - (1 - base) * growth, 0.0)
        if self.rule == "timescale":
            assert rate is not None
            tuned = base * growth * rate(self.at_batch_size or batch_size) * (self.examples or data)
            return (batch_size / self.tau if self.tau else tuned) / rate(batch_size) / data
        if self.rule == "sqrt":
            return base * math.sqrt(growth)
        exponents = {"constant": 0, "linear": 1, "power": self.exponent or 0}
        return float(base * growth ** exponents[self.rule])
