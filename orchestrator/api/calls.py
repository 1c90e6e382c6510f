"""What can be called: the commands, with the same options, and their answers as objects."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.api.command import pairs, run_command
from orchestrator.api.run import Run
from orchestrator.api.tables import Table
from orchestrator.files.own_code import name_of
from orchestrator.files.yaml_files import write_yaml
from orchestrator.planning.branch_file import BranchFile, find_branch_file, load_branches
from orchestrator.planning.outlook import StudyOutlook, outlook
from orchestrator.planning.studies import plan as plan_of
from orchestrator.planning.studies import single_trial
from orchestrator.planning.sweep import Sweep
from orchestrator.planning.sweep_file import find_sweep_file, load_sweep, validated, validated_as
from orchestrator.records import BadInput, Measurement, Outcome, SweepFailed, Trial, Value
from orchestrator.training import one_thread, train_on_ranks

Described = str | Path | Mapping[str, Any] | None
"""A sweep file, the name of a sweep that comes with the project, what such a file says, or None
for the quickstart. In a dict, classes may stand for their names."""


def sweep(
    what: Described = None, *, out: str | Path | None = None, ray: bool = True, **options: Any
) -> Run:
    """Trains all of a sweep, or what a run of it is missing, as `orchestrate sweep` does with the
    same `options` (data_dir=..., set={"search.trials": 8}, address=..., yes=True, ...). Without
    `ray`, one trial after another in this process. The run is in runs/NAME unless told otherwise.
    """
    with _as_file(what) as file:
        described = _load(what, file, options.get("set"))
        place = str(out or f"runs/{described.name}")
        try:
            run_command(
                "sweep", file, {"out": place, **options, "ray": ray}, own=described.places
            )  # fmt: skip
        except BadInput as error:
            raise BadInput(str(error).replace(file, _called(what, file))) from error.__cause__
    return Run(place)


def branch(
    what: str | Path | Mapping[str, Any],
    *,
    out: str | Path | None = None,
    confirm: bool = False,
    ray: bool = True,
    **options: Any,
) -> Run:
    """How large the batch may be at points of one training, as `orchestrate branch` tells it from a
    branch file, or from what is in one. `run.branches()` has the verdicts, `run.schedules()` what
    follows."""
    if isinstance(what, Mapping):
        document = _with_names(what)
        validated_as(BranchFile, document, "the branches")
        there: AbstractContextManager[str] = _kept(write_yaml(document))
    else:
        there = nullcontext(str(find_branch_file(str(what))))
    with there as path:
        described = load_branches(Path(path), _pairs(options.get("set")))
        place = str(out or f"runs/{described.name}")
        given = {"out": place, "confirm": confirm, **options, "ray": ray}
        run_command("branch", path, given, own=described.places)
    return Run(place)


def plan(
    what: Described = None,
    *,
    set: Sequence[str] | Mapping[str, Any] = (),
    data_dir: str | Path | None = None,
) -> Table[StudyOutlook]:
    """How many trials of how many steps a sweep comes to, study by study."""
    from orchestrator.cli.outlooks import outlook_in_words

    with _as_file(what) as file:
        described = _load(what, file, set)
        planned = plan_of(described, _folder(data_dir))
    found = outlook(planned.studies, described.resources.ranks)
    said = "\n".join([*planned.remarks, outlook_in_words(found)])
    return Table(found.studies, asdict, said, shown=OUTLOOK)


OUTLOOK = ("workload", "recipe", "batch_size", "ranks", "trials", "budget_steps")
"""Columns that a person looks for first."""


def open_run(path: str | Path) -> Run:
    """A run that is there, whoever made it."""
    return Run(path)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One trial, and how it went."""

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
    """One trial by hand, in this process, as `orchestrate trial` trains it: until the workload's
    goal or budget, or exactly so many `steps`. A metaparameter that isn't given takes the middle
    of its range."""
    folder = _folder(data_dir)
    trial = single_trial(
        name_of(workload), optimizer, batch_size,
        params=params or {}, evaluate=evaluate, steps=steps, seed=seed, data_dir=folder,
    )  # fmt: skip
    training = train_on_ranks(trial, ranks, data_dir=folder)
    measurements = []
    with one_thread():
        while True:
            try:
                measurements.append(next(training))
            except StopIteration as end:
                outcome, _ = end.value
                break
    if outcome.status == "failed":
        raise SweepFailed(str(outcome.error))
    said = f"{trial.study.key}, {trial.settings}: {outcome.status} after {outcome.steps:,} steps"
    table = Table(measurements, _columns, said)
    return Trained(trial=trial, outcome=outcome, measurements=table)


def _columns(measurement: Measurement) -> dict[str, Any]:
    return {
        "step": measurement.step,
        "seconds": measurement.seconds,
        **measurement.metrics,
    }


@contextmanager
def _as_file(what: Described) -> Iterator[str]:
    if not isinstance(what, Mapping):
        yield str(find_sweep_file(None if what is None else str(what)))
        return
    document = _with_names(what)
    with _kept(write_yaml(validated(document, "the sweep").resolved())) as file:
        yield file


@contextmanager
def _kept(text: str) -> Iterator[str]:
    """In a file for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="orchestrate-") as folder:
        file = Path(folder) / "file.yaml"
        file.write_text(text)
        yield str(file)


def _with_names(value: Any) -> Any:
    """With the names of classes in place of these."""
    if isinstance(value, Mapping):
        return {name: _with_names(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_with_names(one) for one in value]
    return name_of(value) if isinstance(value, type) else value


def _load(what: Described, file: str, overrides: Sequence[str] | Mapping[str, Any] | None) -> Sweep:
    return load_sweep(Path(file), _pairs(overrides))


def _pairs(overrides: Sequence[str] | Mapping[str, Any] | None) -> Sequence[str]:
    return pairs(overrides) if isinstance(overrides, Mapping) else overrides or ()


def _called(what: Described, file: str) -> str:
    return "the sweep" if isinstance(what, Mapping) else file


def _folder(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)
