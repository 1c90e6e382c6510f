"""Tells whether two runs trained a study alike, measurement by measurement."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from orchestrator.records import StudyKey
from orchestrator.results.store import Run
from orchestrator.results.tables import is_metric, numbers


def trained_alike(a: Run, b: Run, study: StudyKey) -> bool:
    """Whether the trials and repeats of a study that both runs hold have the same seeds and
    metaparameters, and the same value of each metric wherever both were measured. How far a trial
    was trained that could not win depends on the clock, so one of the two may have gone further,
    and a compact run holds only some of its measurements."""
    return all(_alike(x, y, study) for x, y in ((a, b), (a.repeats, b.repeats)))


def _alike(a: Run, b: Run, study: StudyKey) -> bool:
    of_trial = {"seed", "params", "repeat"}
    trials = _shared(a.trials(study, of_trial), b.trials(study, of_trial))
    seeds, others = ([(r["seed"], json.loads(r["params"])) for r in t.to_pylist()] for t in trials)
    if seeds != others:
        return False
    x, y = _shared(a.measurements(study), b.measurements(study))
    metrics = {name for name in x.column_names if is_metric(name)} & {*y.column_names}
    return all(
        np.array_equal(numbers(x[name]), numbers(y[name]), equal_nan=True) for name in metrics
    )


def _shared(a: pa.Table, b: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows that both tables have, in the same order. A row is told by its trial, its repeat and
    its step, as far as the tables have these columns."""
    if not len(a) or not len(b):  # a run without repeats does not even have their column
        return a.slice(0, 0), b.slice(0, 0)
    names = np.zeros(len(a) + len(b), dtype=np.int64)
    for column in ("trial", "repeat", "step"):
        if column in a.column_names:
            both = np.concatenate([numbers(a[column]), numbers(b[column])])
            values, places = np.unique(both, return_inverse=True)
            names = names * len(values) + places
    in_a, in_b = np.split(names, [len(a)])
    _, of_a, of_b = np.intersect1d(in_a, in_b, assume_unique=True, return_indices=True)
    return a.take(of_a), b.take(of_b)
