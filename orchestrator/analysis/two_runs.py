"""Reads two runs of one sweep and compares them: their answers, what they were asked for, and what
may explain that they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from orchestrator.analysis.agreement import Agreement, agreement_of
from orchestrator.analysis.study_errors import Answers
from orchestrator.records import BadInput, Study, StudyKey, cut
from orchestrator.results import FrontierRow, GoalOf, Run, frontier_of
from orchestrator.results.equal_trials import trained_alike

NOT_ASKED = ("name", "report")
"""Keys of a sweep that say nothing of what is trained."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A setting that two runs differ in."""

    what: str
    a: Any
    """Its value in A; None if it is not recorded."""
    b: Any


@dataclass(frozen=True, kw_only=True)
class TwoRuns:
    """What comparing two runs found."""

    a: str
    """Where the run A is."""
    b: str
    agreement: Agreement
    differences: tuple[Difference, ...]
    """What differs in what the runs were asked for (their sweeps, the studies that only one of them
    has, numbers of points), then what may explain other results (versions, machine, ranks)."""

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        agreement = fields.pop("agreement")
        return {"verdict": self.agreement.verdict, **fields, **agreement}


def compare_runs(a: Run, b: Run, goals: Sequence[GoalOf] = ()) -> TwoRuns:
    """Compares two runs at `goals`, by default those of each run. Raises `BadInput` for runs of
    branches, runs that share no study, and runs of which nothing is known yet."""
    if a.place == b.place:
        raise BadInput(f"A and B must be two runs, but both are {a.place}. Name another folder.")
    rows = frontier_of(a, goals), frontier_of(b, goals)
    studies_a, studies_b = ({study.key: study for study in run.studies()} for run in (a, b))
    shared = [key for key in studies_a if key in studies_b]
    _refuse_other_sweeps(a, b, rows)
    alike = a.in_parallel(partial(trained_alike, a, b), shared)
    of_a, of_b = (
        Answers(rows=own, budgets={key: study.budget_steps for key, study in studies.items()})
        for own, studies in zip(rows, (studies_a, studies_b), strict=True)
    )
    agreement = agreement_of(of_a, of_b, dict(zip(shared, alike, strict=True)))
    if not agreement.known:
        reasons = "; ".join(dict.fromkeys(pair.reason for pair in agreement.studies))
        raise BadInput(
            f"No study of {a.place} can be compared with that of {b.place}: {reasons}. Finish the "
            f"runs with `orchestrate resume RUN`, or ask for another --goal."
        )
    return TwoRuns(
        a=str(a.place),
        b=str(b.place),
        agreement=agreement,
        differences=(
            *_differences(_asked(a), _asked(b)),
            *_studies_differ(*rows),
            *_points_differ(studies_a, studies_b, shared),
            *_differences(_circumstances(a, rows[0]), _circumstances(b, rows[1])),
        ),
    )


def _refuse_other_sweeps(a: Run, b: Run, rows: Sequence[Sequence[FrontierRow]]) -> None:
    """Raises `BadInput` for two runs that have no study and goal in common."""
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
        f"two runs of one sweep file. If only their goals differ, ask for one with --goal."
    )


def _name(row: FrontierRow) -> str:
    return f"{row.key}, {row.goal}"


def _asked(run: Run) -> dict[str, Any]:
    return {key: value for key, value in run.sweep().items() if key not in NOT_ASKED}


def _studies_differ(a: Sequence[FrontierRow], b: Sequence[FrontierRow]) -> Iterator[Difference]:
    """The studies and goals that only one of the runs has."""
    both = [dict.fromkeys(map(_name, rows)) for rows in (a, b)]
    for name in both[0] | both[1]:
        of_a, of_b = ("studied" if name in names else "not studied" for names in both)
        if of_a != of_b:
            yield Difference(what=name, a=of_a, b=of_b)


def _points_differ(
    a: Mapping[StudyKey, Study], b: Mapping[StudyKey, Study], shared: Sequence[StudyKey]
) -> Iterator[Difference]:
    """The numbers of points of studies that do not have as many in both runs, one difference for
    all studies with the same two numbers."""
    numbers = Counter((a[key].trials, b[key].trials) for key in shared)
    for (of_a, of_b), count in numbers.items():
        if of_a != of_b:
            studies = "one study" if count == 1 else f"{count} studies"
            yield Difference(what=f"points of {studies}", a=of_a, b=of_b)


def _circumstances(run: Run, rows: Sequence[FrontierRow]) -> dict[str, Any]:
    """What may change results although it was not asked for."""
    recorded = {key: value for key, value in run.provenance().items() if key != "started"}
    ranks = sorted({row.ranks for row in rows if row.ranks is not None})
    return {**recorded, "ranks": ", ".join(map(str, ranks)) or None}


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    of_a, of_b = dict(_flat(a)), dict(_flat(b))
    for what in dict.fromkeys([*of_a, *of_b]):
        if of_a.get(what) != of_b.get(what):
            yield Difference(what=what, a=of_a.get(what), b=of_b.get(what))


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each value of a document with the names of the parts that it lies in. Parts in a list go by
    their own names, as those of recipes do."""
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        value = {part.get("name", place): part for place, part in enumerate(value)}
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _flat(part, f"{name}.{key}" if name else str(key))
    else:
        yield name, value
