"""The commands that make a run, continue it and stop it."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import remote
from orchestrator.cli.branching import answer_of, write_up
from orchestrator.cli.ending import death_before
from orchestrator.cli.options import (
    DONE,
    FAILED,
    GOAL_UNREACHED,
    AddressOption,
    ClusterOption,
    DataOption,
    JsonOption,
    RayOption,
    RunArgument,
    SetOption,
    TrackOption,
    YesOption,
)
from orchestrator.cli.planning import agree
from orchestrator.cli.training import How, run_plan
from orchestrator.records import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.planning.studies import Plan
    from orchestrator.planning.sweep import Sweep
    from orchestrator.results import Run


def sweep(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|NAME]",
            help="Sweep file, or the name of a sweep of the project. Default: the quickstart.",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(help="Folder of the run, or s3://BUCKET/FOLDER. Default: runs/NAME."),
    ] = None,
    set_: SetOption = None,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    data_dir: DataOption = None,
    yes: YesOption = False,
    track: TrackOption = None,
    ray: RayOption = True,
    as_json: JsonOption = False,
) -> int:
    """Run every study of a sweep file. Continues the run if it was started before."""
    from orchestrator.planning.sweep_file import find_sweep_file, load_sweep

    how = How(address=address, data_dir=data_dir, track=track, ray=ray)
    described = load_sweep(find_sweep_file(file), set_ or [])
    if cluster is not None:
        refuse_both(address)
        return remote.sweep(cluster, described, out, data_dir, track, yes=yes, as_json=as_json)
    return run_described(described, out, how, yes=yes, as_json=as_json)


def run_described(
    described: Sweep,
    out: str | None,
    how: How,
    *,
    yes: bool,
    as_json: bool = False,
    part_of: Run | None = None,
) -> int:
    """Makes the run of a sweep, or continues it. Prints its answer, unless it is a part of another
    run."""
    from orchestrator.planning.branch_plan import at_most
    from orchestrator.planning.growth import refuse_incomparable
    from orchestrator.planning.outlook import outlook
    from orchestrator.planning.studies import plan
    from orchestrator.results import Run, provenance

    run = Run(out or f"runs/{described.name}")
    _check_trackers(how.track, run)
    planned = plan(described, how.data_dir)
    agreed = yes or death_before() is not None
    agree(outlook(at_most(described, planned.studies), described.resources.ranks), yes=agreed)
    run.check_writable()
    with run.locked():
        if run.exists:
            _refuse_imported(run)
            refuse_incomparable(run, planned)
        if run.exists and run.is_for(described.resolved(), planned.studies):
            run.write_sweep_file()
        else:
            run.create(described.resolved(), planned.studies, provenance())
        return _train_all(run, planned, how, as_json=as_json, part_of=part_of)


def _train_all(
    run: Run, planned: Plan, how: How, *, as_json: bool, part_of: Run | None = None
) -> int:
    """Trains what the run is missing. If the schedules of its branches are to be confirmed, trains
    with these, too."""
    from orchestrator.results import confirmation_of

    code = run_plan(run, planned, how, as_json=as_json, part_of=part_of)
    asked = planned.sweep.branch
    if code != DONE or asked is None or not asked.confirm:
        return code
    answer = answer_of(run, planned.sweep, planned.studies)
    if (confirming := answer.confirming) is not None:
        place = str(confirmation_of(run).place)
        code = run_described(confirming, place, how, yes=True, part_of=run)
    if code == GOAL_UNREACHED:
        code = DONE  # trainings that confirm go on to the end of the budget, whatever the goal
    written = write_up(run, answer, as_json)
    return code if written or code != DONE else FAILED


def resume(
    path: RunArgument,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    data_dir: DataOption = None,
    track: TrackOption = None,
    ray: RayOption = True,
    as_json: JsonOption = False,
) -> int:
    """Continue a run: train what its files do not hold yet."""
    from orchestrator.planning.growth import refuse_changed
    from orchestrator.planning.studies import plan_again
    from orchestrator.planning.sweep_file import validated
    from orchestrator.results import Run

    how = How(address=address, data_dir=data_dir, track=track, ray=ray)
    if cluster is not None:
        refuse_both(address)
        return remote.resume(cluster, path, data_dir, track, as_json=as_json)
    run = Run.open(path)
    _refuse_imported(run)
    _check_trackers(track, run)
    refuse_changed(run)
    described = validated(run.sweep(), f"{run.place} (studies.json)")
    planned = plan_again(described, run.studies(), data_dir)
    run.check_writable()
    with run.locked():
        if run.studies() != [*planned.studies]:
            raise BadInput(
                f"Another process added studies to {run.place} at this moment. Try again."
            )
        run.write_sweep_file()
        return _train_all(run, planned, how, as_json=as_json)


def stop(path: RunArgument, cluster: ClusterOption = None) -> int:
    """End a running sweep as Ctrl-C does, and keep what it measured."""
    from orchestrator.cli.terminal import say
    from orchestrator.results import Run

    if cluster is not None:
        return remote.stop(cluster, path)
    run = Run.open(path)
    process = run.writer()
    if process is None:
        say(f"Nothing is running in {run.place}.")
        return DONE
    os.kill(process, signal.SIGTERM)
    say(f"Process {process} was told to end and writes its results ...")
    while run.writer() == process:
        time.sleep(0.1)
    say(f"Go on with: orchestrate resume {run.place}")
    return DONE


def refuse_both(address: str | None) -> None:
    if address is not None:
        raise BadInput(
            "Give either --address or --cluster, not both: --address trains from this machine, "
            "--cluster submits a job to the head of a cluster."
        )


def _refuse_imported(run: Run) -> None:
    if run.imported:
        raise BadInput(
            f"{run.place} was imported from an archive: nothing can be trained in it. "
            f"Name another folder with --out."
        )


def _check_trackers(track: Sequence[str] | None, run: Run) -> None:
    if track:
        from orchestrator.sweeping.tracking import check_trackers

        check_trackers(track, run.place)
