"""How far the answers of two runs A and B of one sweep agree, study by study and curve by curve,
and the same in words.

If nothing differs, one study in ten still does by chance. Holm's method tells which differ beyond
that: with a probability of 90 %, it names none if nothing differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.analysis.estimates import CONFIDENCE
from orchestrator.analysis.pairs import (
    Agreed,
    Answers,
    AnyPair,
    CurvePair,
    StudyPair,
    curve_pair,
    sides_of,
    study_pair,
)
from orchestrator.analysis.points import Names, has_medians
from orchestrator.analysis.scaling import scalings
from orchestrator.analysis.words import listed
from orchestrator.records import StudyKey
from orchestrator.results import to_csv

LISTED = 6
"""Largest number of studies that a sentence names."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far the answers of two runs agree."""

    same_frontier: bool
    """Whether their `frontier.csv` is the same, byte for byte."""
    studies: tuple[StudyPair, ...]
    curves: tuple[CurvePair, ...]
    as_minima: tuple[Names, ...]
    """Curves of which only one run has repeats, so that the minima of both are compared."""

    @property
    def verdict(self) -> Agreed:
        if any(pair.beyond_chance for pair in (*self.studies, *self.curves)):
            return "differ"
        return "same" if self.same_frontier else "agree"

    @property
    def known(self) -> list[StudyPair]:
        """The studies of which it is known whether they agree."""
        return [pair for pair in self.studies if pair.verdict != "not known"]

    @property
    def differing(self) -> list[StudyPair]:
        return [pair for pair in self.studies if pair.verdict == "differ"]


def agreement_of(a: Answers, b: Answers, alike: Mapping[StudyKey, bool]) -> Agreement:
    """Compares two frontiers. `alike` says of which studies all measurements are equal, too."""
    frontiers = [to_csv(answers.rows) for answers in (a, b)]
    curves_a, curves_b = a.curves(), b.curves()
    mixed = tuple(
        names
        for names, curve in curves_a.items()
        if names in curves_b and has_medians(curve) != has_medians(curves_b[names])
    )
    a, b = (answers.as_minima(mixed) for answers in (a, b))
    of_a, of_b = ({one.names: one for one in scalings(answers.rows)} for answers in (a, b))
    sides_a, sides_b = sides_of(a, of_a), sides_of(b, of_b)
    studies = [
        study_pair(side, sides_b[place], alike=alike.get(side.row.key, False))
        for place, side in sides_a.items()
        if place in sides_b
    ]
    changed = {pair.names for pair in studies if pair.verdict != "same"}
    pairs = [
        curve_pair(one, of_b[names], same=names not in changed)
        for names, one in of_a.items()
        if names in of_b
    ]
    return Agreement(
        same_frontier=frontiers[0] == frontiers[1],
        studies=tuple(with_holm(studies)),
        curves=tuple(with_holm(pairs)),
        as_minima=mixed,
    )


def with_holm(pairs: Sequence[AnyPair]) -> list[AnyPair]:
    """Marks the pairs that differ beyond chance. Holm's method: the least likely of m pairs must be
    m times as unlikely as a single one, the next m - 1 times, and so on up to the first that is
    not."""
    level = 1 - CONFIDENCE
    known = [place for place, pair in enumerate(pairs) if pair.verdict != "not known"]
    marked = list(pairs)
    for rank, place in enumerate(sorted(known, key=lambda place: pairs[place].probability)):
        if pairs[place].probability > level / (len(known) - rank):
            break
        marked[place] = replace(pairs[place], beyond_chance=True)
    return marked


def agreement_in_words(agreement: Agreement) -> str:
    """The sentence that answers whether the studies of two runs agree."""
    differing, count = agreement.differing, len(agreement.known)
    changed = sum(pair.verdict != "same" for pair in agreement.known)
    if differing:
        beyond = "differs beyond its interval"
        if len(differing) > 1:
            beyond = "differ beyond their intervals"
        said = f"{len(differing)} of {count} studies {beyond}: {_listed(agreement, differing)}"
    elif agreement.same_frontier:
        said = "The frontiers are the same, byte for byte"
        if changed:
            said += f", but {changed} of {count} studies measured other values"
    else:
        said = f"{count} of {count} studies agree: none differs beyond its interval"
    if curves := dict.fromkeys(pair.recipe for pair in agreement.curves if pair.beyond_chance):
        said += (
            f". The batch size with a fifth more examples differs beyond chance for "
            f"{listed([*curves])}"
        )
    if unknown := [pair for pair in agreement.studies if pair.verdict == "not known"]:
        said += f". Not compared: {_listed(agreement, unknown)}"
    return f"{said}."


def remarks_on(agreement: Agreement) -> Iterator[str]:
    """Yields what a reader of the steps and ratios should know."""
    known = agreement.known
    if differing := agreement.differing:
        sure = sum(pair.beyond_chance for pair in differing)
        yield (
            f"If nothing differed, about {(1 - CONFIDENCE) * len(known):.2g} of {len(known)} "
            f"studies would still do so by chance. Beyond chance, by Holm's correction for the "
            f"number of studies: {sure} of {len(differing)}."
        )
    kinds = {pair.of_medians for pair in known if pair.a or pair.b}
    if True in kinds:
        yield "Medians of repeats have their intervals in brackets."
    if False in kinds:
        yield "Minima over trials: the goal was passed between the two steps in brackets."
    if agreement.as_minima:
        curves = listed([*dict.fromkeys(recipe for _, recipe, _ in agreement.as_minima)])
        yield f"Only one run has repeats of {curves}, so the minima of both are compared."
    if unknown := dict.fromkeys(pair.recipe for pair in known if pair.luck_unknown):
        yield (
            f"The error from the small number of trials is not known for {listed([*unknown])}, so "
            f"their ratios have intervals that are too narrow. It takes four batch sizes to know "
            f"it."
        )
    ratios = [pair.ratio.value for pair in known if pair.a and pair.b and pair.ratio]
    if set(ratios) - {1}:
        mean = math.prod(ratios) ** (1 / len(ratios))
        yield f"B takes {mean:.3g} times the steps of A in the geometric mean over studies."


def _listed(agreement: Agreement, pairs: Sequence[StudyPair]) -> str:
    """Names studies, with workload and goal if these are not the same for all studies."""
    workloads = {pair.workload for pair in agreement.studies}
    goals = {pair.goal for pair in agreement.studies}
    return listed(
        [
            f"{pair.workload} " * (len(workloads) > 1)
            + f"{pair.recipe} at {pair.batch_size:,}"
            + f" ({pair.goal})" * (len(goals) > 1)
            for pair in pairs
        ],
        LISTED,
    )
