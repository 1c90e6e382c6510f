"""Tells whether two runs trained a study alike, measurement by measurement."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orchestrator.records import StudyKey
from orchestrator.results.store import Run
from orchestrator.results.tables import numbers

Places = NDArray[np.int64]


def trained_alike(a: Run, b: Run, study: StudyKey) -> bool:
    """Whether the trials and repeats of a study that both runs hold have the same seeds and
    metaparameters, and the same value of each metric wherever both were measured. How far a trial
    was trained that could not win depends on the clock, so one of the two may have gone further."""
    return all(_alike(x, y, study) for x, y in ((a, b), (a.repeats, b.repeats)))


def _alike(a: Run, b: Run, study: StudyKey) -> bool:
    of_trial = {"seed", "params", "repeat"}
    trials = _shared(a.trials(study, of_trial), b.trials(study, of_trial))
    if not all(map(_same_trial, *(table.to_pylist() for table in trials))):
        return False
    x, y = _shared(a.measurements(study), b.measurements(study))
    metrics = {name for name in x.column_names if "/" in name} & {*y.column_names}
    return all(
        np.array_equal(numbers(x[name]), numbers(y[name]), equal_nan=True)
        for name in ("step", *metrics)
    )


def _same_trial(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return (a["seed"], json.loads(a["params"])) == (b["seed"], json.loads(b["params"]))


def _shared(a: pa.Table, b: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The first rows of each trial or repeat that is in both tables: as many as both have."""
    (of_a, starts_a, counts_a), (of_b, starts_b, counts_b) = _trials_in(a), _trials_in(b)
    _, in_a, in_b = np.intersect1d(of_a, of_b, assume_unique=True, return_indices=True)
    counts = np.minimum(counts_a[in_a], counts_b[in_b])
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return (
        a.take(np.repeat(starts_a[in_a], counts) + within),
        b.take(np.repeat(starts_b[in_b], counts) + within),
    )


def _trials_in(table: pa.Table) -> tuple[Places, Places, Places]:
    """A number for each trial or repeat of a table, its first row and how many rows it has. The
    rows of each follow each other."""
    trials = numbers(table["trial"]).astype(np.int64) << 32
    if "repeat" in table.column_names:
        trials += numbers(table["repeat"])
    return np.unique(trials, return_index=True, return_counts=True)
