"""Compares the answers of two runs A and B of one sweep, study by study and curve by curve.

The steps of a study differ if the 90 % interval of their ratio excludes 1. The variance of the
logarithm of the ratio is the sum of those of both sides: from the distance between measurements,
from the seeds of repeats, and from the small number of trials. The last one does not count if both
runs repeated the same point. Where it is not known, the scatter of the points about their curve
stands for it. Nor does a study differ as long as both runs may have passed the goal at the same
step, between two measurements.

Runs with the same seeds share their luck, so they differ by less than that: their intervals are too
wide rather than too narrow.

If nothing differs, one study in ten still does by chance. Holm's method tells which differ beyond
that: with a probability of 90 %, it names none if nothing differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.analysis.estimates import CONFIDENCE
from orchestrator.analysis.pairs import (
    Agreed,
    AnyPair,
    CurvePair,
    StudyPair,
    curve_pair,
    study_pair,
)
from orchestrator.analysis.points import has_medians
from orchestrator.analysis.study_errors import Answers, Names, sides_of
from orchestrator.records import StudyKey
from orchestrator.results import to_csv


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


def agreement_of(a: Answers, b: Answers, alike: Mapping[StudyKey, bool]) -> Agreement:
    """Compares two frontiers. `alike` says of which studies all measurements are equal, too."""
    curves = a.by_curve(), b.by_curve()
    both = [names for names in curves[0] if names in curves[1]]
    mixed = tuple(n for n in both if has_medians(curves[0][n]) != has_medians(curves[1][n]))
    (of_a, sides_a), (of_b, sides_b) = (sides_of(_without_repeats(each, mixed)) for each in (a, b))
    studies = [
        study_pair(side, sides_b[place], alike=alike.get(side.row.key, False))
        for place, side in sides_a.items()
        if place in sides_b
    ]
    changed = {
        (pair.workload, pair.recipe, pair.goal) for pair in studies if pair.verdict != "same"
    }
    pairs = [
        curve_pair(of_a[names], of_b[names], same=names not in changed)
        for names in of_a
        if names in of_b
    ]
    return Agreement(
        same_frontier=to_csv(a.rows) == to_csv(b.rows),
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


def _without_repeats(answers: Answers, curves: Sequence[Names]) -> Answers:
    rows = [
        replace(row, repeats=None) if (row.workload, row.recipe, row.goal) in curves else row
        for row in answers.rows
    ]
    return replace(answers, rows=rows)
