"""Tells whether two runs trained a study alike, measurement by measurement."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from orchestrator.records import StudyKey
from orchestrator.results.store import Run
from orchestrator.results.tables import is_metric, numbers

OTHER = " of the other"
"""What follows the names of columns of the second run."""


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
