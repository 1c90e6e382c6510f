"""The tables of the page of a run of branches, as HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.analysis import (
    FactorCost,
    Verdict,
    critical_in_words,
    factor_in_words,
    fifth_more_in_words,
    forecast_ratio,
    in_words,
)
from orchestrator.report.branch_content import BranchContent
from orchestrator.report.tables import table

POINT = ("After examples", False)


def cost_table(verdicts: Sequence[Verdict]) -> str:
    """What each batch size costs at each point."""
    heads = [
        POINT, ("Batch size", False), ("Factor", False), ("Examples, times", False),
        ("Learning rate, times", False),
    ]  # fmt: skip
    rows = [
        [
            f"{verdict.at_examples:,}",
            f"{cost.factor * verdict.batch_size:,}",
            f"{cost.factor}",
            _ratio(cost, verdict),
            f"{cost.rate:.3g}",
        ]
        for verdict in verdicts
        for cost in verdict.costs
    ]
    if not rows:
        return ""
    return table(
        "How many times the examples each batch size needs for the loss that the trunk's own batch "
        "size reaches, at the best learning rate of each, which is a multiple of the trunk's. In "
        "brackets, 90 % intervals. Below 1, the larger batch needs fewer examples: its learning "
        "rate suits it better.",
        heads,
        rows,
    )


def _ratio(cost: FactorCost, verdict: Verdict) -> str:
    ratio = cost.examples_ratio
    if not verdict.is_known and cost.factor > 1:
        return "not known"
    if cost.factor == 1:
        return "1"
    if math.isfinite(ratio.value):
        return factor_in_words(ratio)
    assert ratio.low is not None
    if not math.isfinite(ratio.low):
        return "does not get there, or diverges"
    return f"{ratio.low:.2g} or more"


def length_table(content: BranchContent) -> str:
    """How the answer changed as branches became longer."""
    heads = [
        POINT, ("Length of branches, in examples", False), ("Costs a fifth more", False),
        ("B_crit", False), ("Seeds that judge", False),
    ]  # fmt: skip
    rows = [
        [
            f"{verdict.at_examples:,}",
            f"{verdict.length:,}",
            fifth_more_in_words(verdict),
            critical_in_words(verdict),
            f"{verdict.seeds}",
        ]
        for found in content.by_length
        for verdict in found
    ]
    if not rows:
        return ""
    return table(
        "The answer by the length of branches, which is doubled until three in a row agree or the "
        "budget ends. The last row of each point is the one that counts.",
        heads,
        rows,
    )


def noise_table(content: BranchContent) -> str:
    """The noise scale beside what was measured at the same points."""
    heads = [POINT, ("Noise scale", False), ("B_crit", False), ("Ratio", False)]
    rows = []
    for verdict in content.verdicts:
        if (point := content.noise.get(verdict.at_examples)) is not None:
            ratio = forecast_ratio(point.scale, verdict.critical)
            rows.append(
                [
                    f"{verdict.at_examples:,}",
                    in_words(point.scale) if math.isfinite(point.scale.value) else "not known",
                    critical_in_words(verdict),
                    "" if ratio is None else factor_in_words(ratio),
                ]
            )
    if not rows:
        return ""
    return table(
        "The noise scale of the trunk's gradient beside the local critical batch size by branches, "
        "with 90 % intervals, and the ratio of the two. By the theory they are the same: "
        "a ratio of 2 means that the noise scale foretold a batch size twice as large.",
        heads,
        rows,
    )
