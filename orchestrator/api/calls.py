"""Functions for the commands, which take the same options and return their answers as objects."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.analysis import Scaling, scalings
from orchestrator.api.command import as_in_files, run_command, several, training_here
from orchestrator.api.run import Run
from orchestrator.api.tables import Table
from orchestrator.cli.planning import outlook_in_words
from orchestrator.files.yaml_files import write_yaml
from orchestrator.planning.branch_file import BranchFile, find_branch_file, load_branches
from orchestrator.planning.outlook import StudyOutlook, outlook
from orchestrator.planning.single import single_trial
from orchestrator.planning.studies import plan as plan_of
from orchestrator.planning.sweep import Sweep
from orchestrator.planning.sweep_file import find_sweep_file, load_sweep, validated_as
from orchestrator.records import (
    MANY,
    BadInput,
    Measurement,
    Outcome,
    SweepFailed,
    Trial,
    Value,
    wrong_value,
)
from orchestrator.results import FrontierRow
from orchestrator.results.repeats import repeats_from
from orchestrator.sweeping import session
from orchestrator.training import one_thread, train_on_ranks

Described = str | Path | Mapping[str, Any] | None
"""A sweep file, the name of a sweep of the project, the content of a sweep file as a dict, or None
for the quickstart. A dict may hold classes in place of their names."""

Set = str | Sequence[str] | Mapping[str, Any] | None
"""Values for keys of the file, as a dict, such as {"search.trials": 50}, or as `KEY=VALUE`."""


def sweep(
    what: Described = None,
    *,
    out: str | Path | None = None,
    set: Set = None,
    address: str | None = None,
    cluster: str | Path | None = None,
    data_dir: str | Path | None = None,
    yes: bool = False,
    track: str | Sequence[str] | None = None,
    ray: bool | None = None,
    quiet: bool = False,
) -> Run:
    """Trains a sweep, or what its run is missing, and returns the run. The arguments are the
    options of `orchestrate sweep`. `ray=False` trains in this process. The run is written to `out`,
    by default runs/NAME."""
    with _as_file(what) as file:
        described = load_sweep(Path(file), several(set))
        path = str(f"runs/{described.name}" if out is None else out)
        here = partial(session.sweep, described, path)
        run_command(
            "sweep", file, here, own=described.code_names, out=path, set=set, address=address,
            cluster=cluster, data_dir=data_dir, yes=yes, track=track, ray=ray, quiet=quiet,
        )  # fmt: skip
    return Run(path)


def branch(
    what: str | Path | Mapping[str, Any],
    *,
    out: str | Path | None = None,
    set: Set = None,
    address: str | None = None,
    cluster: str | Path | None = None,
    data_dir: str | Path | None = None,
    confirm: bool = False,
    yes: bool = False,
    ray: bool | None = None,
    quiet: bool = False,
) -> Run:
    """Finds how large the batch may be at points of one training. The arguments are the options of
    `orchestrate branch`. `what` is a branch file, or its content as a dict. `run.branches()`
    returns the verdicts, `run.schedules()` the schedules of batch sizes that follow from them."""
    with _as_file(what, BranchFile) as file:
        asked = ["confirm=true"] if confirm else []
        described = load_branches(Path(file), [*several(set), *asked])
        path = str(f"runs/{described.name}" if out is None else out)
        here = partial(session.sweep, described, path)
        run_command(
            "branch", file, here, own=described.code_names, out=path, set=set, address=address,
            cluster=cluster, data_dir=data_dir, confirm=confirm, yes=yes, ray=ray, quiet=quiet,
        )  # fmt: skip
    return Run(path)


def plan(
    what: Described = None, *, set: Set = None, data_dir: str | Path | None = None
) -> Table[StudyOutlook]:
    """The number of trials and of their steps for each study of a sweep."""
    with _as_file(what) as file, training_here:
        described = load_sweep(Path(file), several(set))
        planned = plan_of(described, None if data_dir is None else Path(data_dir))
    found = outlook(planned.studies, described.resources.ranks)
    said = "\n".join([*planned.remarks, outlook_in_words(found)])
    shown = ("workload", "recipe", "batch_size", "ranks", "trials", "budget_steps")
    return Table(found.studies, asdict, said, shown=shown)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One trial, its outcome and its measurements."""

    trial: Trial
    outcome: Outcome
    measurements: Table[Measurement]

    def __repr__(self) -> str:
        return repr(self.measurements)

    def _repr_html_(self) -> str:
        return self.measurements._repr_html_()


def train(
    workload: str | type,
    *,
    optimizer: str,
    batch_size: int,
    params: Mapping[str, Value] | None = None,
    steps: int | None = None,
    ranks: int = 1,
    seed: int = 0,
    evaluate: Mapping[str, Any] | None = None,
    data_dir: str | Path | None = None,
) -> Trained:
    """Trains one trial in this process, as `orchestrate trial` does: until the workload's goal or
    budget, or for exactly `steps` steps. A metaparameter that isn't given takes the middle of its
    range."""
    if ranks < 1:
        raise wrong_value("`ranks`", "1 or more", ranks)
    folder = None if data_dir is None else Path(data_dir)
    batch_size, steps, seed = as_in_files((batch_size, steps, seed))
    measurements = []
    with training_here, one_thread():
        trial = single_trial(
            as_in_files(workload), optimizer, batch_size,
            params=as_in_files(params or {}), evaluate=evaluate, steps=steps, seed=seed,
            data_dir=folder, ranks=ranks,
        )  # fmt: skip
        training = train_on_ranks(trial, ranks, data_dir=folder)
        while True:
            try:
                measurements.append(next(training))
            except StopIteration as end:
                outcome, _ = end.value
                break
    if outcome.status == "failed":
        raise SweepFailed(str(outcome.error))
    said = f"{trial.study.key}, {trial.settings}: {outcome.status} after {outcome.steps:,} steps"
    table = Table(measurements, lambda m: {"step": m.step, "seconds": m.seconds, **m.metrics}, said)
    return Trained(trial=trial, outcome=outcome, measurements=table)


@contextmanager
def _as_file(what: Described, kind: type[Sweep | BranchFile] = Sweep) -> Iterator[str]:
    """The file that describes what is to be trained, a temporary one if it is not in a file."""
    if not isinstance(what, Mapping):
        name = None if what is None else str(what)
        yield str(find_sweep_file(name) if kind is Sweep else find_branch_file(str(name)))
        return
    called = "the sweep" if kind is Sweep else "the branches"
    described = validated_as(kind, as_in_files(what), called)
    with tempfile.TemporaryDirectory(prefix="orchestrate-") as folder:
        file = Path(folder) / "file.yaml"
        given = described.model_dump(mode="json", by_alias=True, exclude_unset=True)
        file.write_text(write_yaml(given))
        try:
            yield str(file)
        except BadInput as error:
            text = str(error).replace(str(file), called)
            raise type(error)(text, code=error.code) from error.__cause__


def scaling(
    batch_sizes: Iterable[Any], steps: Iterable[Any], *, resolution: float | Iterable[float] = 0
) -> Scaling:
    """Answers how far the batch size scales, from steps that were measured elsewhere. Each number
    of the answer has `value`, `low` and `high`, the ends of its 90 % interval.

    `batch_sizes` are examples per step: a list, an array or a column of a table. It takes four or
    more that reached the goal in ten steps or more.

    `steps` are the steps to goal, one entry for each of these. If several seeds were trained, an
    entry is the list of their steps, or a batch size stands there once for each seed; the answer is
    then about their medians, and seeds are part of the intervals. None, NaN or infinity stands for
    a training that never reached the goal.

    `resolution` is the number of steps between two measurements where the goal was passed: one
    number, or one for each entry. 0: the goal was watched at every step."""
    try:
        if isinstance(batch_sizes, str) or isinstance(steps, str):
            raise TypeError("a text is none")
        sizes, entries = [*batch_sizes], [*steps]
        gaps = np.broadcast_to(np.asarray(resolution), len(sizes))
        rows = zip(sizes, entries, gaps, strict=True)
        draws = [(size, each, gap) for size, entry, gap in rows for each in np.ravel(entry)]
        size, taken, gap = np.array(draws, dtype=np.float64).T
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"`batch_sizes`, `steps` and `resolution` must be numbers, with an entry each for the "
            f"same batch sizes: {error}.",
            code="wrong-value",
        ) from None
    taken[np.isnan(taken)] = math.inf
    whole = (size >= 1) & (size <= MANY) & (size % 1 == 0)
    for what, numbers, fits, form in (
        ("a batch size", size, whole, f"a whole number from 1 to {MANY:,}"),
        ("steps", taken, taken > 0, "above 0, or None for never"),
        ("`resolution`", gap, (gap >= 0) & (gap < math.inf), "a number of steps, 0 or more"),
    ):
        if not fits.all():
            raise wrong_value(what, form, float(numbers[~fits][0]))
    found, repeated = [], len(draws) > len(np.unique(size))
    for each in np.unique(size).tolist():
        pairs = np.stack([taken, gap.round()])[:, size == each].T.tolist()
        seeds: list[Any] = [(steps, int(apart)) for steps, apart in pairs]
        fewest, apart = min(seeds) if math.isfinite(min(seeds)[0]) else (None, None)
        found.append(
            FrontierRow(
                workload="", recipe="curve", optimizer="", goal="", batch_size=int(each),
                reached=fewest is not None, steps=fewest, resolution=apart,
                repeats=repeats_from(seeds) if repeated else None,
                censored=False, trials={}, trials_used=1, warnings=(),
            )
        )  # fmt: skip
    return scalings(found)[0]
