"""Reads two runs A and B of one sweep and compares them: their answers study by study and curve by
curve, what they were asked for, and what may explain that they differ; and the same in words.

If nothing differs, one study in ten still does by chance. Holm's method tells which differ beyond
that: with a probability of 90 %, it names none if nothing differs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

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
from orchestrator.records import BadInput, Study, StudyKey, cut, differences, shown_pair
from orchestrator.results import FrontierRow, GoalOf, RunFiles, frontier_of, to_csv

LISTED = 6
"""Largest number of studies that a sentence names."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
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


def agreement_of(a: Answers, b: Answers) -> Agreement:
    """Compares two frontiers."""
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
    studies = [study_pair(side, sides_b[key]) for key, side in sides_a.items() if key in sides_b]
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
    known = [index for index, pair in enumerate(pairs) if pair.verdict != "not known"]
    marked = list(pairs)
    for number, index in enumerate(sorted(known, key=lambda index: pairs[index].probability)):
        if pairs[index].probability > level / (len(known) - number):
            break
        marked[index] = replace(pairs[index], beyond_chance=True)
    return marked


def agreement_in_words(agreement: Agreement) -> str:
    differing, count = agreement.differing, len(agreement.known)
    if differing:
        beyond = "differs beyond its interval"
        if len(differing) > 1:
            beyond = "differ beyond their intervals"
        said = f"{len(differing)} of {count} studies {beyond}: {_listed(agreement, differing)}"
    elif agreement.same_frontier:
        said = "The frontiers are the same, byte for byte"
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


@dataclass(frozen=True, kw_only=True)
class Difference:
    what: str
    a: Any
    """Its value in A; None if it is not recorded."""
    b: Any


@dataclass(frozen=True, kw_only=True)
class TwoRuns:
    a: str
    b: str
    agreement: Agreement
    differences: tuple[Difference, ...]
    """What differs in what the runs were asked for (the seed, the studies that only one of them
    has, settings of studies), then what may explain other results (versions, machine, ranks)."""

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        agreement = fields.pop("agreement")
        return {"verdict": self.agreement.verdict, **fields, **agreement}


def compare_runs(a: RunFiles, b: RunFiles, goals: Sequence[GoalOf] = ()) -> TwoRuns:
    """Compares two runs at `goals`, by default those of each run. Raises `BadInput` for runs of
    branches, runs that share no study, and runs of which nothing is known yet."""
    if a.place == b.place:
        raise BadInput(f"A and B must be two runs, but both are {a.place}.", code="given-twice")
    rows = frontier_of(a, goals), frontier_of(b, goals)
    studies_a, studies_b = ({study.key: study for study in run.studies()} for run in (a, b))
    shared = [key for key in studies_a if key in studies_b]
    _refuse_other_sweeps(a, b, rows)
    of_a, of_b = (
        Answers(rows=own, budgets={key: study.budget_steps for key, study in studies.items()})
        for own, studies in zip(rows, (studies_a, studies_b), strict=True)
    )
    agreement = agreement_of(of_a, of_b)
    if not agreement.known:
        reasons = "; ".join(dict.fromkeys(pair.reason for pair in agreement.studies))
        raise BadInput(
            f"No study of {a.place} can be compared with that of {b.place}: {reasons}. Finish the "
            f"runs with `orchestrate resume RUN`, or ask for another --goal.",
            code="unfinished",
        )
    return TwoRuns(
        a=str(a.place),
        b=str(b.place),
        agreement=agreement,
        differences=(
            *_differences(*({"seed": run.sweep().get("seed")} for run in (a, b))),
            *_differences(*_studied(*rows)),
            *_settings_differ(studies_a, studies_b, shared),
            *_differences(*map(_circumstances, (a, b), rows)),
        ),
    )


def _refuse_other_sweeps(a: RunFiles, b: RunFiles, rows: Sequence[Sequence[FrontierRow]]) -> None:
    if {*map(_name, rows[0])} & {*map(_name, rows[1])}:
        return
    said = "no study with the same goal"
    for field in ("workload", "recipe", "batch_size", "goal"):
        of_a, of_b = (dict.fromkeys(str(getattr(row, field)) for row in own) for own in rows)
        if not of_a.keys() & of_b.keys():
            listed = (cut(", ".join(values)) for values in (of_a, of_b))
            said = f"no {field.replace('_', ' ')}: A has {' and B has '.join(listed)}"
            break
    raise BadInput(
        f"Runs are compared study by study, but {a.place} (A) and {b.place} (B) share {said}. Give "
        f"two runs of one sweep file. If only their goals differ, ask for one with --goal; an "
        f"import without a column for the workload takes the name of its file or folder.",
        code="incomparable",
    )


def _name(row: FrontierRow) -> str:
    return f"{row.key}, {row.goal}"


def _studied(*frontiers: Sequence[FrontierRow]) -> Iterator[dict[str, str]]:
    """Whether each study and goal of any of the runs was studied, for each run."""
    every = dict.fromkeys(_name(row) for rows in frontiers for row in rows)
    for names in (set(map(_name, rows)) for rows in frontiers):
        yield {name: "studied" if name in names else "not studied" for name in every}


def _settings_differ(
    a: Mapping[StudyKey, Study], b: Mapping[StudyKey, Study], shared: Sequence[StudyKey]
) -> Iterator[Difference]:
    """The settings in which studies differ, with all their values."""
    found: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
    for key in shared:
        for what, _, *values in differences(a[key], b[key]):
            found[what].append(shown_pair(*values))
    for what, pairs in found.items():
        studies = "one study" if len(pairs) == 1 else f"{len(pairs)} studies"
        of_a, of_b = ([*dict.fromkeys(values)] for values in zip(*pairs, strict=True))
        yield Difference(what=f"{what} of {studies}", a=_together(of_a), b=_together(of_b))


def _together(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else ", ".join(map(str, values))


def _circumstances(run: RunFiles, rows: Sequence[FrontierRow]) -> dict[str, Any]:
    """What may change results although it was not asked for."""
    recorded = {key: value for key, value in run.provenance().items() if key != "started"}
    ranks = sorted({row.ranks for row in rows if row.ranks is not None})
    return {**recorded, "ranks": ", ".join(map(str, ranks)) or None}


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    for what, _, *both in differences(a, b):
        yield Difference(what=what, a=both[0], b=both[1])
