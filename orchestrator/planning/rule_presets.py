"""Rules that belong together: a recipe's `rules`, which say what stays the same."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from orchestrator.planning.parts import MANY, Part
from orchestrator.records import LARGEST, BadInput, unknown, wrong_value

Keep = Literal["adam_sde", "rmsprop_sde", "sgd_sde", "adam_timescales"]

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "adam_sde": {
        "learning_rate": {"rule": "sqrt"},
        "beta1": {"rule": "one_minus_linear"},
        "beta2": {"rule": "one_minus_linear"},
        "epsilon": {"rule": "power", "exponent": -0.5},
    },
    "rmsprop_sde": {
        "learning_rate": {"rule": "sqrt"},
        "smoothing": {"rule": "one_minus_linear"},
        "epsilon": {"rule": "power", "exponent": -0.5},
    },
    "sgd_sde": {"learning_rate": {"rule": "linear"}},
    "adam_timescales": {
        "learning_rate": {"rule": "sqrt"},
        "beta1": {"rule": "half_life"},
        "beta2": {"rule": "half_life"},
        "weight_decay": {"rule": "timescale"},
    },
}
"""What is kept -> metaparameter -> its rule. The first three keep the stochastic differential
equation that a training approximates (Malladi et al. 2022 for Adam and RMSprop, Smith & Le 2018 for
SGD)."""


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        raise wrong_value("the value at `at_batch_size`", "a number", value)
    return value


class Rules(Part):
    """Rules that belong together, and the values that were tuned at one batch size."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[float, BeforeValidator(_number)]] = Field(init=False)

    keep: Keep = Field(examples=["adam_sde"])
    """What stays the same at every batch size. `adam_sde`: `learning_rate` x sqrt(k), 1 - `beta1`
    and 1 - `beta2` x k, `epsilon` / sqrt(k), where k is the growth of the batch size. `rmsprop_sde`:
    the same with `smoothing`. `sgd_sde`: `learning_rate` x k. `adam_timescales`: `learning_rate` x
    sqrt(k), the half-lives of `beta1` and `beta2` in examples, and tau of `weight_decay`. Each of
    these metaparameters is given beside `keep`."""
    at_batch_size: float = Field(strict=True, ge=1, le=MANY, examples=[256])
    """The batch size at which they were tuned."""


    @model_validator(mode="after")
    def _whole(self) -> Rules:
        preset = PRESETS[self.keep]
        for name in self.bases:
            if name not in preset:
                raise unknown(f"metaparameter in rules that keep {self.keep}:", name, preset)
        if missing := [name for name in preset if name not in self.bases]:
            raise BadInput(
                f"rules that keep {self.keep} belong together, so they need the values of "
                f"{', '.join(missing)} at batch size {self.at_batch_size:g}, too",
                code="missing-value",
            )
        return self

    @property
    def bases(self) -> dict[str, float]:
        """Metaparameter -> its value at `at_batch_size`."""
        return self.model_extra or {}

    def entries(self) -> dict[str, dict[str, Any]]:
        """The rules as entries of a search space."""
        return {
            name: {**rule, "base": self.bases[name], "at_batch_size": self.at_batch_size}
            for name, rule in PRESETS[self.keep].items()
        }
