"""Rules that belong together: the key `rules` of a recipe, which says what stays the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.records import BadInput, unknown

KEEP, AT = "keep", "at_batch_size"

SQRT, DECAY = {"rule": "sqrt"}, {"rule": "one_minus_linear"}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "adam_sde": {
        "learning_rate": SQRT,
        "beta1": DECAY,
        "beta2": DECAY,
        "epsilon": {"rule": "power", "exponent": -0.5},
    },
    "sgd_sde": {"learning_rate": {"rule": "linear"}},
    "adam_timescales": {
        "learning_rate": SQRT,
        "beta1": {"rule": "half_life"},
        "beta2": {"rule": "half_life"},
        "weight_decay": {"rule": "timescale"},
    },
}
"""What is kept -> metaparameter -> its rule. The first two keep the stochastic differential
equation that a training approximates: of Adam (Malladi et al. 2022) and of SGD."""


def entries_of(rules: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of a search space that a recipe's `rules` stand for."""
    if not rules:
        return {}
    if (keep := str(rules.get(KEEP))) not in PRESETS:
        raise unknown("set of rules: keep:", keep, PRESETS)
    known = [AT, *PRESETS[keep]]
    for name in rules.keys() - {KEEP}:
        if name not in known:
            raise unknown(f"key of rules that keep {keep}:", name, known)
    if missing := [name for name in known if name not in rules]:
        raise BadInput(
            f"the rules that keep {keep} belong together: give {', '.join(missing)}, too.",
            code="missing-value",
        )
    return {
        name: {**rule, "base": rules[name], AT: rules[AT]} for name, rule in PRESETS[keep].items()
    }
