"""Reads two runs of one sweep and compares them: their answers, what they were asked for, and what
may explain that they differ."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.analysis.agreement import Agreement, agreement_of
from orchestrator.analysis.pairs import Answers
from orchestrator.records import BadInput, Study, StudyKey, cut, differences, told
from orchestrator.results import FrontierRow, GoalOf, Run, frontier_of
from orchestrator.results.tables import is_metric, numbers

OTHER = " of the other"
"""What follows the names of columns of the second run."""


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
    """What differs in what the runs were asked for (the seed, the studies that only one of them
    has, settings of studies), then what may explain other results (versions, machine, ranks)."""

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        agreement = fields.pop("agreement")
        return {"verdict": self.agreement.verdict, **fields, **agreement}


def compare_runs(a: Run, b: Run, goals: Sequence[GoalOf] = ()) -> TwoRuns:
    """Compares two runs at `goals`, by default those of each run. Raises `BadInput` for runs of
    branches, runs that share no study, and runs of which nothing is known yet."""
    if a.place == b.place:
        raise BadInput(f"A and B must be two runs, but both are {a.place}.", code="given-twice")
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


def trained_alike(a: Run, b: Run, study: StudyKey) -> bool:
    """Whether the trials and repeats of a study that both runs hold have the same seeds and
    metaparameters, and the same value of each metric wherever both were measured. How far a trial
    was trained that could not win depends on the clock, so one of the two may have gone further,
    and a compact run holds only some of its measurements."""
    return all(_alike(x, y, study) for x, y in ((a, b), (a.repeats, b.repeats)))


def _alike(a: Run, b: Run, study: StudyKey) -> bool:
    of_trial = {"seed", "params", "repeat"}
    trials = _beside(a.trials(study, of_trial), b.trials(study, of_trial)).to_pylist()
    measured = _beside(a.measurements(study), b.measurements(study))
    return all(
        row["seed"] == row["seed" + OTHER]
        and json.loads(row["params"]) == json.loads(row["params" + OTHER])
        for row in trials
    ) and all(
        np.array_equal(numbers(measured[name]), numbers(measured[name + OTHER]), equal_nan=True)
        for name in measured.column_names
        if is_metric(name) and name + OTHER in measured.column_names
    )


def _beside(a: pa.Table, b: pa.Table) -> pa.Table:
    """The rows of `a` beside those of `b` that are of the same trial, repeat and step, as far as
    both tables have these columns: a run without repeats does not even have theirs."""
    keys = [n for n in ("trial", "repeat", "step") if n in a.column_names and n in b.column_names]
    return a.join(b, keys, join_type="inner", right_suffix=OTHER)


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
        f"two runs of one sweep file. If only their goals differ, ask for one with --goal.",
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
            found[what].append(told(*values))
    for what, pairs in found.items():
        studies = "one study" if len(pairs) == 1 else f"{len(pairs)} studies"
        of_a, of_b = ([*dict.fromkeys(values)] for values in zip(*pairs, strict=True))
        yield Difference(what=f"{what} of {studies}", a=_together(of_a), b=_together(of_b))


def _together(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else ", ".join(map(str, values))


def _circumstances(run: Run, rows: Sequence[FrontierRow]) -> dict[str, Any]:
    """What may change results although it was not asked for."""
    recorded = {key: value for key, value in run.provenance().items() if key != "started"}
    ranks = sorted({row.ranks for row in rows if row.ranks is not None})
    return {**recorded, "ranks": ", ".join(map(str, ranks)) or None}


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    for what, _, *both in differences(a, b):
        yield Difference(what=what, a=both[0], b=both[1])
