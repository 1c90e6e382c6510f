"""Says in words how far two runs agree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from orchestrator.analysis.agreement import Agreement
from orchestrator.analysis.estimates import CONFIDENCE
from orchestrator.analysis.pairs import StudyPair

LISTED = 6
"""Largest number of studies that a sentence names."""


def agreement_in_words(agreement: Agreement) -> str:
    """Returns the sentence that answers whether the studies of two runs agree."""
    known = agreement.known
    differing = [pair for pair in known if pair.verdict == "differ"]
    equal = sum(pair.verdict == "same" for pair in known)
    if agreement.same_frontier and not differing:
        said = "The frontiers are the same, byte for byte"
        if equal < len(known):
            said += f", but {len(known) - equal} of {len(known)} studies measured other values"
    elif differing:
        beyond = "differ beyond their intervals"
        if len(differing) == 1:
            beyond = "differs beyond its interval"
        said = f"{len(differing)} of {len(known)} studies {beyond}: {_listed(agreement, differing)}"
    else:
        said = f"{len(known)} of {len(known)} studies agree: none differs beyond its interval"
        if equal:
            said += f", and {equal} {'is' if equal == 1 else 'are'} equal to the last bit"
    if curves := [pair.recipe for pair in agreement.curves if pair.beyond_chance]:
        several = ", ".join(dict.fromkeys(curves))
        said += f". The batch size with a fifth more examples differs beyond chance for {several}"
    if unknown := [pair for pair in agreement.studies if pair.verdict == "not known"]:
        said += f". Not compared: {_listed(agreement, unknown)}"
    return f"{said}."


def chance_in_words(agreement: Agreement) -> str:
    """Says which studies differ beyond chance; empty if none differs at all."""
    known = agreement.known
    differing = [pair for pair in known if pair.verdict == "differ"]
    if not differing:
        return ""
    sure = [pair for pair in differing if pair.beyond_chance]
    expected = (1 - CONFIDENCE) * len(known)
    return (
        f"If nothing differed, about {expected:.2g} of {len(known)} studies would still do so by "
        f"chance. By Holm's correction for the number of studies, "
        + (
            f"{len(sure)} of these {_verb(sure)} beyond chance: {_listed(agreement, sure)}."
            if sure
            else "none of these differs beyond chance."
        )
    )


def ratios_in_words(agreement: Agreement) -> str:
    """Says by how much the steps differ over all studies; empty if no ratio is known or all are
    1."""
    known = [pair for pair in agreement.known if pair.a and pair.b and pair.ratio]
    ratios = sorted((pair.ratio.value, place) for place, pair in enumerate(known) if pair.ratio)
    if not ratios or ratios[0][0] == ratios[-1][0] == 1:
        return ""
    mean = math.prod(ratio for ratio, _ in ratios) ** (1 / len(ratios))
    ends = (
        f"{ratio:.3g} ({_listed(agreement, [known[at]])})" for ratio, at in (ratios[0], ratios[-1])
    )
    return (
        f"B takes {mean:.3g} times the steps of A in the geometric mean over studies, from "
        f"{' to '.join(ends)}."
    )


def curves_in_words(agreement: Agreement) -> str:
    """Says whether the batch sizes that take a fifth more examples agree."""
    known = [pair for pair in agreement.curves if pair.verdict != "not known"]
    if not known:
        return "No curve has a batch size with a fifth more examples in both runs."
    differing = [pair for pair in known if pair.verdict == "differ"]
    if not differing:
        return f"{len(known)} of {len(known)} batch sizes with a fifth more examples agree."
    sure = sum(pair.beyond_chance for pair in differing)
    return (
        f"{len(differing)} of {len(known)} batch sizes with a fifth more examples "
        f"{_verb(differing)} beyond their "
        f"intervals, and {sure or 'none'} of them beyond chance."
    )


def remarks_on(agreement: Agreement) -> Iterator[str]:
    """Yields what a reader of the steps and ratios should know."""
    kinds = {pair.of_medians for pair in agreement.known if pair.a or pair.b}
    if True in kinds:
        yield "Medians of repeats have their intervals in brackets."
    if False in kinds:
        yield "Minima over trials: the goal was passed between the two steps in brackets."
    if agreement.as_minima:
        curves = ", ".join(dict.fromkeys(recipe for _, recipe, _ in agreement.as_minima))
        yield f"Only one run has repeats of {curves}, so the minima of both are compared."
    if unknown := dict.fromkeys(pair.recipe for pair in agreement.known if pair.luck_unknown):
        yield (
            f"The error from the small number of trials is not known for {', '.join(unknown)}, so "
            f"their ratios have intervals that are too narrow. It takes four batch sizes to know "
            f"it."
        )


def _verb(pairs: Sequence[object]) -> str:
    return "differs" if len(pairs) == 1 else "differ"


def _listed(agreement: Agreement, pairs: Sequence[StudyPair]) -> str:
    """Names studies, with workload and goal if these are not the same for all studies."""
    workloads = {pair.workload for pair in agreement.studies}
    goals = {pair.goal for pair in agreement.studies}
    named = [
        f"{pair.workload} " * (len(workloads) > 1)
        + f"{pair.recipe} at {pair.batch_size:,}"
        + f" ({pair.goal})" * (len(goals) > 1)
        for pair in pairs[:LISTED]
    ]
    more = [f"and {len(pairs) - LISTED} more"] if len(pairs) > LISTED else []
    return ", ".join([*named, *more])
