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
    in_words,
    ratio_of,
)
from orchestrator.report.branch_content import BranchContent
from orchestrator.report.tables import table

POINT = ("After examples", False)


def cost_table(verdicts: Sequence[Verdict]) -> str:
    """Returns the table of what each batch size costs at each point."""
    if not verdicts:
        return ""
    sizes = [cost.factor * verdicts[0].batch_size for cost in verdicts[0].costs]
    rows = [
        [
            f"{verdict.at_examples:,}",
            *(f"{_ratio(cost, verdict)}, x{cost.rate:.3g}" for cost in verdict.costs),
        ]
        for verdict in verdicts
    ]
    return table(
        "For each batch size, how many times the examples it needs for the loss that the trunk's "
        "own batch size reaches, with 90 % intervals, and its best learning rate, as a multiple of "
        "the trunk's. Below 1, the larger batch needs fewer examples.",
        [POINT, *((f"Batch size {size:,}", False) for size in sizes)],
        rows,
    )


def _ratio(cost: FactorCost, verdict: Verdict) -> str:
    ratio = cost.examples_ratio
    if cost.factor == 1:
        return "1"
    if not verdict.is_known:
        return "not known"
    assert ratio.low is not None
    assert ratio.high is not None
    if not math.isfinite(ratio.low):
        return "never"
    if not math.isfinite(ratio.value):
        return f"{ratio.low:.2f} or more"
    end = f"to {ratio.high:.2f}" if math.isfinite(ratio.high) else "or more"
    return f"{ratio.value:.2f} ({ratio.low:.2f} {end})"


def length_table(content: BranchContent) -> str:
    """Returns the table of how the answer changed as branches became longer."""
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
        "The answer by the length of branches, which is doubled until three in a row agree, or "
        "they are as long as they may be. The last row of each point is the one that counts.",
        heads,
        rows,
    )


def noise_table(content: BranchContent) -> str:
    """Returns the table of the noise scale beside the measurements at the same points."""
    heads = [POINT, ("Noise scale", False), ("B_crit", False), ("Ratio", False)]
    rows = []
    for verdict in content.verdicts:
        if (point := content.noise.get(verdict.at_examples)) is not None:
            ratio = ratio_of(point.scale, verdict.critical)
            rows.append(
                [
                    f"{verdict.at_examples:,}",
                    in_words(point.scale) if math.isfinite(point.scale.value) else "not known",
                    critical_in_words(verdict),
                    "not known" if ratio is None else factor_in_words(ratio),
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
