"""Trains the trials that a run is missing, shows progress to the user and writes the answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.branching import answer_of, queue_of, write_up
from orchestrator.cli.ending import (
    MOST_DEATHS,
    begin_anew,
    death_before,
    heeding_interrupts,
)
from orchestrator.cli.options import (
    DONE,
    FAILED,
    GOAL_UNREACHED,
    INTERRUPTED,
)
from orchestrator.records import BadInput, SweepFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.cluster.progress import Progress
    from orchestrator.planning.studies import Plan
    from orchestrator.records import StudyKey
    from orchestrator.results import FrontierRow, Run
    from orchestrator.search import Queue

ENDING = (
    "Ending: the measurements are kept and the results are written. A second interrupt ends it at "
    "once."
)


@dataclass(frozen=True, kw_only=True)
class How:
    """How trials are trained: on the cluster at `address`, on one that is started here, or without
    Ray in this process."""

    address: str | None = None
    data_dir: Path | None = None
    track: Sequence[str] | None = None
    ray: bool = True

    def __post_init__(self) -> None:
        if not self.ray and (self.address or self.track):
            raise BadInput(
                "--no-ray trains in this process, without a cluster or trackers: leave out "
                "--address and --track."
            )


def run_plan(
    run: Run, planned: Plan, how: How, *, as_json: bool, part_of: Run | None = None
) -> int:
    """Trains what is missing from the run, then writes its answer. Prints the answer, too, unless
    the run is a part of another run."""
    from orchestrator.cli.terminal import complain, say
    from orchestrator.cluster.progress import Progress
    from orchestrator.results.merger import MOST_LOOSE

    for doubt in planned.doubts:
        say(doubt)
    progress = Progress(planned.studies)
    keys = [study.key for study in planned.studies]
    if sum(run.in_parallel(run.loose, keys)) > MOST_LOOSE:
        _put_together(run, keys, over=False)
    director = _director(run, planned, progress)
    code, error = DONE, None
    if director.done:
        say(f"{run.place} holds every trial of this sweep, so there is nothing to train.")
    else:
        again = sum(study.most_repeats for study in planned.studies)
        say(
            f"{len(planned.studies)} studies, {director.planned - progress.done} trials to train "
            f"({progress.done} are done already)"
            f"{f', and up to {again} repeats of the best trials' if again else ''}; the run is "
            f"{run.place}"
        )
        try:
            train = _train if how.ray else _train_alone
            if not train(run, planned, director, progress, how):
                code = INTERRUPTED
        except KeyboardInterrupt:
            code = INTERRUPTED
        except SweepFailed as failed:
            code, error = FAILED, failed
    if code == FAILED and not progress.done:
        complain(error)
        return FAILED
    if code == DONE:
        _put_together(run, keys, over=planned.sweep.branch is None)
        _remove_checkpoints(run)
    quietly = part_of is not None
    rows, written = _write_up(run, planned, as_json, over=code == DONE, quietly=quietly)
    go_on = f"Go on with: orchestrate resume {(part_of or run).place}"
    if code == FAILED:
        complain(f"{error}\n{go_on}")
        return FAILED
    if code == INTERRUPTED:
        say(f"Interrupted. {go_on}")
        return INTERRUPTED
    if not written:
        return FAILED
    return DONE if all(row.reached for row in rows) else GOAL_UNREACHED


def _put_together(run: Run, keys: Sequence[StudyKey], *, over: bool) -> None:
    """Merges the files of single trials into one per study, which is faster to read. Storage that
    refuses this leaves the files as they are."""
    from orchestrator.cli.terminal import say

    try:
        run.in_parallel(partial(run.put_together, over=over), keys)
    except OSError as error:
        say(
            f"The files of single trials can't be merged and stay as they are. Nothing is lost, "
            f"but reading the run is slower: {error}"
        )


def _remove_checkpoints(run: Run) -> None:
    """Removes the checkpoints, also those of earlier processes: once all trials are done, none goes
    on from a checkpoint."""
    from orchestrator.cli.terminal import say

    try:
        (run.place / "checkpoints").remove_folder()
    except OSError as error:
        say(
            f"{run.place / 'checkpoints'} is no longer needed but can't be removed; you may delete "
            f"it: {error}"
        )


def _director(run: Run, planned: Plan, progress: Progress) -> Queue:
    """The searches, brought to the state that the run's files record. `progress` follows them."""
    from orchestrator.cli.terminal import say
    from orchestrator.planning.growth import trials_within
    from orchestrator.search import Director

    resources = planned.sweep.resources
    director: Queue = (
        Director(planned.studies, planned.sweep.seed, lambda s: resources.ranks(s.batch_size))
        if planned.sweep.branch is None
        else queue_of(planned.sweep, planned.studies)
    )
    anew = 0
    for study in planned.studies:
        trials, more = trials_within(run, study)
        anew += more
        for finished in trials:
            if finished.outcome.status != "failed":
                director.load(finished)
    if anew:
        say(
            f"The sweep asks for more than before, so up to {anew} trials that had ended begin "
            f"anew."
        )
    director.begin()
    for key, search in director.searches.items():
        progress.follow(key, search)
    return director


def _train_alone(run: Run, planned: Plan, director: Queue, progress: Progress, how: How) -> bool:
    """Trains in this process and shows progress. False after an interrupt."""
    from orchestrator.cli.live import rewritten
    from orchestrator.cli.terminal import showing
    from orchestrator.cluster.alone import train_alone

    with (
        heeding_interrupts(lambda: progress.notes.append(ENDING)) as asked_to_end,
        showing(progress),
        rewritten(run),
    ):
        return train_alone(
            run,
            director,
            planned.sweep,
            progress=progress,
            data_dir=how.data_dir,
            asked_to_end=asked_to_end,
        )


def _train(run: Run, planned: Plan, director: Queue, progress: Progress, how: How) -> bool:
    """Trains on a cluster and shows progress. False after an interrupt. Raises `SweepFailed`."""
    from orchestrator.cli.live import rewritten
    from orchestrator.cli.terminal import say, showing
    from orchestrator.cluster.connect import connect
    from orchestrator.cluster.run import run_trials
    from orchestrator.cluster.tracking import Trackers

    if (death := death_before()) is not None:
        if death.asked_to_end:
            return False
        if death.is_final:
            raise SweepFailed(f"{death.reason} It was started anew {MOST_DEATHS} times before.")
        say(f"{death.reason} Ray is started anew (restart {death.count} of at most {MOST_DEATHS}).")
    asked_to_end: Callable[[], bool] = lambda: False  # noqa: E731 - replaced below

    def died(reason: str) -> None:
        begin_anew(reason, asked_to_end=asked_to_end())

    with run.log() as log, connect(how.address, log, died) as cluster:
        if cluster.dashboard:
            say(
                f"Ray dashboard: http://{cluster.dashboard} (`ray get-auth-token` prints its token)"
            )
        told = Trackers(how.track, run, director, planned.sweep.name, say) if how.track else None
        with (
            heeding_interrupts(lambda: progress.notes.append(ENDING)) as asked_to_end,
            closing(told) if told else nullcontext(),
            showing(progress),
            rewritten(run),
        ):
            complete = run_trials(
                run,
                director,
                planned.sweep,
                cluster=cluster,
                progress=progress,
                data_dir=how.data_dir,
                trackers=told,
                asked_to_end=asked_to_end,
            )
        if director.stalled and not asked_to_end():
            raise SweepFailed(_what_is_lost(director))
    share = [None, *(session["busy_share"] for session in run.sessions())][-1]
    if share is not None:
        say(f"The slots were busy {share:.0%} of the time until no trial was left to start.")
    return complete


def _what_is_lost(director: Queue) -> str:
    lost = [trial for search in director.searches.values() for trial in search.lost]
    named = ", ".join(f"{trial.study.key} trial {trial.index}" for trial in lost)
    return (
        f"The processes of some trials were lost at every attempt: {named}. The next points of "
        f"their searches depend on the results of these trials, so the searches wait until the "
        f"trials are tried again."
    )


def _write_up(
    run: Run, planned: Plan, as_json: bool, *, over: bool, quietly: bool
) -> tuple[list[FrontierRow], bool]:
    """Prints the frontier, then writes its files and the report. Returns the rows of the frontier,
    and whether the files were written."""
    if (asked := planned.sweep.branch) is not None:
        found = answer_of(run, planned.sweep, planned.studies)
        # An answer that is to be confirmed is printed after the trainings that confirm it.
        return [], (over and asked.confirm) or write_up(run, found, as_json)
    from orchestrator.cli.answers import print_frontier, what_next
    from orchestrator.cli.terminal import complain, say
    from orchestrator.report import write_report_of
    from orchestrator.results import frontier_of, write_frontier

    rows = frontier_of(run)
    if not quietly:
        print_frontier(run, rows, as_json)
    page = run.place / "report.html"
    try:
        write_frontier(run, rows)
        write_report_of({"": (run, rows)}, page)
    except OSError as error:
        complain(
            f"The answer can't be written to {run.place}: {error}. The measurements are kept; "
            f"`orchestrate report` writes the page."
        )
        return rows, False
    say(f"Report: {page}")
    if over and not quietly:
        say(what_next(rows, run.place))
    return rows, True
