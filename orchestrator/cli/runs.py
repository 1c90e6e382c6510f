"""Making a run, and going on with one."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import remote
from orchestrator.cli.options import (
    DONE,
    FAILED,
    GOAL_UNREACHED,
    INTERRUPTED,
    AddressOption,
    ClusterOption,
    DataOption,
    JsonOption,
    RunArgument,
    SetOption,
    TrackOption,
    YesOption,
)
from orchestrator.cli.planning import agree
from orchestrator.cli.reading import print_frontier
from orchestrator.cli.report import write_report_of
from orchestrator.records import BadInput, SweepFailed

if TYPE_CHECKING:
    from orchestrator.progress import Progress
    from orchestrator.results import FrontierRow, Run
    from orchestrator.search import Director
    from orchestrator.studies import Plan


def sweep(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE|NAME]", help="Default: the quickstart.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(help="The run folder, or s3://BUCKET/FOLDER and such [runs/NAME]."),
    ] = None,
    set_: SetOption = None,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    data_dir: DataOption = None,
    yes: YesOption = False,
    track: TrackOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run every study of a sweep file; go on with a run that was interrupted."""
    from orchestrator.growth import refuse_incomparable
    from orchestrator.plan import forecast
    from orchestrator.results import Run, provenance
    from orchestrator.studies import plan
    from orchestrator.sweep import find_sweep_file, load_sweep

    described = load_sweep(find_sweep_file(file), set_ or [])
    if cluster is not None:
        _refuse_both(address)
        return remote.sweep(cluster, described, out, data_dir, track, yes=yes, as_json=as_json)
    run = Run(out or f"runs/{described.name}")
    _check_trackers(track, run)
    planned = plan(described, data_dir)
    agree(forecast(planned.studies, described.resources.ranks), yes=yes)
    run.check_writable()
    with run.locked():
        if run.exists:
            _refuse_imported(run)
            refuse_incomparable(run, planned)
        if not run.exists or run.sweep() != described.resolved():
            run.create(described.resolved(), planned.studies, provenance())
        return _run_plan(run, planned, address, data_dir, track, as_json)


def resume(
    path: RunArgument,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    data_dir: DataOption = None,
    track: TrackOption = None,
    as_json: JsonOption = False,
) -> int:
    """Go on with a run: train what its files do not hold yet."""
    from orchestrator.results import Run
    from orchestrator.studies import plan
    from orchestrator.sweep import validated

    if cluster is not None:
        _refuse_both(address)
        return remote.resume(cluster, path, data_dir, track, as_json=as_json)
    run = Run.open(path)
    _refuse_imported(run)
    _check_trackers(track, run)
    planned = plan(validated(run.sweep(), str(run.place / "sweep.yaml")), data_dir)
    with run.locked():
        return _run_plan(run, planned, address, data_dir, track, as_json)


def stop(path: RunArgument, cluster: ClusterOption = None) -> int:
    """End a running sweep, as Ctrl-C would: what is measured is kept."""
    from orchestrator.results import Run
    from orchestrator.terminal import say

    if cluster is not None:
        return remote.stop(cluster, path)
    run = Run.open(path)
    process = run.writer()
    if process is None:
        say(f"Nothing is running in {run.place}.")
        return DONE
    os.kill(process, signal.SIGTERM)
    say(f"Process {process} was told to end, and writes up what there is ...")
    while run.writer() == process:
        time.sleep(0.1)
    say(f"Go on with: orchestrate resume {run.place}")
    return DONE


def _refuse_both(address: str | None) -> None:
    if address is not None:
        raise BadInput("Either --address or --cluster: the one is where to train from here.")


def _refuse_imported(run: Run) -> None:
    if run.imported:
        raise BadInput(
            f"{run.place} was imported from an archive: nothing can be trained in it. "
            f"Name another folder with --out."
        )


def _check_trackers(track: list[str] | None, run: Run) -> None:
    if track:
        from orchestrator.cluster.tracking import check_trackers

        check_trackers(track, run.place)


def _run_plan(
    run: Run,
    planned: Plan,
    address: str | None,
    data_dir: Path | None,
    track: list[str] | None,
    as_json: bool,
) -> int:
    """Trains what is missing from the run, then writes and prints what it says."""
    from orchestrator.progress import Progress
    from orchestrator.terminal import say

    for doubt in planned.doubts:
        say(doubt)
    progress = Progress(planned.studies)
    director = _director(run, planned, progress)
    complete = True
    if director.done:
        say(f"{run.place} holds every trial of this sweep: nothing to train.")
    else:
        say(
            f"{len(planned.studies)} studies, {director.planned - progress.done} trials to train "
            f"({progress.done} are there already), into {run.place}"
        )
        try:
            complete = _train(run, planned, director, progress, address, data_dir, track)
        except SweepFailed as error:
            print(f"error: {error}", file=sys.stderr)
            return FAILED
        except KeyboardInterrupt:
            complete = False
    if complete:
        run.in_parallel(lambda study: run.compact(study.key), planned.studies)
    rows = _write_up(run)
    print_frontier(rows, as_json)
    say(f"Report: {run.place / 'report.html'}")
    if not complete:
        say(f"Interrupted. Go on with: orchestrate resume {run.place}")
        return INTERRUPTED
    return DONE if all(row.reached for row in rows) else GOAL_UNREACHED


def _director(run: Run, planned: Plan, progress: Progress) -> Director:
    """The searches as far as the run's files bring them; `progress` is told of what they hold."""
    from orchestrator.search import Director

    resources = planned.sweep.resources
    director = Director(
        planned.studies, planned.sweep.seed, lambda study: resources.ranks(study.batch_size)
    )
    for study in planned.studies:
        for finished in run.finished(study):
            if finished.outcome.status != "failed":
                director.load(finished)
    director.begin()
    for key, search in director.searches.items():
        progress.follow(key, search)
    return director


def _train(
    run: Run,
    planned: Plan,
    director: Director,
    progress: Progress,
    address: str | None,
    data_dir: Path | None,
    track: list[str] | None,
) -> bool:
    """Trains on a cluster, in sight of the user; False after an interrupt."""
    from orchestrator.cli.live import rewritten
    from orchestrator.cluster.connect import connect
    from orchestrator.cluster.run import run_trials
    from orchestrator.cluster.tracking import Trackers
    from orchestrator.terminal import say, showing

    with run.log() as log, connect(address, log) as cluster:
        # From here on an interrupt is not the end: what was measured is still written up. Ray has
        # put a handler of its own in place by now, which would abort.
        signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        if cluster.dashboard:
            say(f"Ray dashboard: http://{cluster.dashboard} (`ray get-auth-token`)")
        told = Trackers(track, run, director, planned.sweep.name, say) if track else None
        with closing(told) if told else nullcontext(), showing(progress), rewritten(run):
            complete = run_trials(
                run,
                director,
                planned.sweep,
                cluster=cluster,
                progress=progress,
                data_dir=data_dir,
                trackers=told,
            )
    share = run.sessions()[-1]["busy_share"]
    if share is not None:
        say(
            f"Until nothing was left to start, trials trained or evaluated {share:.0%} of the time."
        )
    return complete


def _write_up(run: Run) -> list[FrontierRow]:
    """Makes the frontier and the report anew from the run's files."""
    from orchestrator.results import frontier_of, write_frontier

    rows = frontier_of(run)
    write_frontier(run, rows)
    write_report_of({"": (run, rows)}, run.place / "report.html")
    return rows
