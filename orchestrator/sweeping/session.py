"""A session of a run, from its sweep to its answer: makes or continues the run, trains what is
missing, and writes what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Literal

from orchestrator.analysis.branch_answer import Answer, answer_in, branching_of, write_branches
from orchestrator.planning.branch_plan import foreseen
from orchestrator.planning.growth import refuse_changed, refuse_incomparable, trials_within
from orchestrator.planning.outlook import Outlook, outlook
from orchestrator.planning.studies import Plan, plan, plan_again
from orchestrator.planning.sweep import Sweep
from orchestrator.planning.sweep_file import validated
from orchestrator.planning.widths import decide
from orchestrator.records import BadInput, StudyKey, SweepFailed, counted, mistake
from orchestrator.results import (
    FrontierRow,
    RunFiles,
    confirmation_of,
    frontier_of,
    merger,
    write_frontier,
)
from orchestrator.results.provenance import provenance
from orchestrator.search import Director, Queue
from orchestrator.sweeping.dispatch import Dispatcher
from orchestrator.sweeping.executor import Executor, Job
from orchestrator.sweeping.interrupts import heeded
from orchestrator.sweeping.progress import Progress
from orchestrator.sweeping.tracking import Trackers, check_trackers
from orchestrator.training import Checkpoint, States

OpensExecutor = Callable[[Job], AbstractContextManager[Executor]]
"""Opens the executor for a job."""

ENDING = (
    "Ending: the measurements are kept and the results are written. A second interrupt ends it at "
    "once."
)


@dataclass(frozen=True, kw_only=True)
class How:
    """How a session trains, and how it talks to its user."""

    open_executor: OpensExecutor
    data_dir: Path | None = None
    track: Sequence[str] = ()
    """Names of the trackers that are told of each trial."""
    agree: Callable[[Outlook], None] = lambda outlook: None
    """Raises `BadInput` if the user does not want to start a sweep of this size."""
    say: Callable[[str], None] = lambda text: None
    """Shows a message."""
    showing: Callable[[RunFiles, Progress], AbstractContextManager[None]] = lambda run, progress: (
        nullcontext()
    )
    """Shows progress during a `with` block."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a session ended, and the answer that it has written."""

    run: RunFiles
    status: Literal["done", "unreached", "interrupted", "failed"]
    """`unreached`: all is trained, but not every study has reached its goals, or not every point of
    branches has a verdict."""
    error: str = ""
    rows: Sequence[FrontierRow] = ()
    branches: Answer | None = None
    page: str | None = None
    """Where the report is; None if it could not be written."""


def sweep(described: Sweep, out: str | Path | None, how: How) -> Ended:
    """Makes the run of a sweep, or continues it."""
    run = RunFiles(f"runs/{described.name}" if out is None else out)
    check_trackers(how.track, run.place)
    planned = plan(described, how.data_dir)
    how.agree(outlook(foreseen(described, planned.studies), described.resources.ranks))
    run.check_writable()
    with run.locked():
        # Without studies.json nobody knows of which sweep the trials are, and this is refused.
        if run.exists or (run.place / "trials").is_folder():
            _refuse_imported(run)
            refuse_incomparable(run, planned)
        if run.exists and run.is_for(described.resolved(), planned.studies):
            run.write_sweep_file()
        else:
            run.create(described.resolved(), planned.studies, provenance())
        return _confirmed(_train(run, planned, how), planned, how)


def resume(run: RunFiles, how: How) -> Ended:
    """Continues a run: trains what its files do not hold yet."""
    _refuse_imported(run)
    check_trackers(how.track, run.place)
    refuse_changed(run)
    described = validated(run.sweep(), f"{run.place} (studies.json)")
    planned = plan_again(described, run.studies(), how.data_dir)
    run.check_writable()
    with run.locked():
        if run.studies() != [*planned.studies]:
            raise BadInput(f"Another process just added studies to {run.place}. Try again.")
        run.write_sweep_file()
        return _confirmed(_train(run, planned, how), planned, how)


def dispatcher_of(
    run: RunFiles, queue: Queue, sweep: Sweep, executor: Executor, progress: Progress, **rest: Any
) -> Dispatcher:
    """The dispatcher that trains what `queue` asks for. `rest` are options of `Dispatcher`."""
    studies = [search.study for search in queue.searches.values()]
    widths = decide(run, studies, executor.resources, executor.data_dir)
    return Dispatcher(run, queue, executor, widths, sweep.faults, progress=progress, **rest)


def _refuse_imported(run: RunFiles) -> None:
    if run.imported:
        raise BadInput(
            f"{run.place} was imported: how its trials are trained is unknown, so nothing can be "
            f"trained in it. Name another folder with --out.",
            code="imported-run",
        )


def _confirmed(ended: Ended, planned: Plan, how: How) -> Ended:
    """Trains with the schedules of a run of branches, if that is asked for."""
    asked = planned.sweep.branch
    if asked is None or not asked.confirm or ended.branches is None or ended.status != "done":
        return ended
    if (confirming := ended.branches.confirming) is None:
        return ended
    place = str(confirmation_of(ended.run).place)
    part = sweep(confirming, place, replace(how, agree=lambda _: None))
    # Trainings that confirm go on to the end of the budget, whatever the goal.
    status = "done" if part.status == "unreached" else part.status
    return _written(replace(ended, status=status, error=part.error), planned, how)


def _train(run: RunFiles, planned: Plan, how: How) -> Ended:
    for doubt in planned.doubts:
        how.say(doubt)
    keys = [study.key for study in planned.studies]
    if sum(run.in_parallel(run.loose, keys)) > merger.MOST_LOOSE:
        _put_together(run, keys, how, finished=False)
    progress = Progress(planned.studies)
    queue = queue_of(run, planned, progress, how.say)
    ended = Ended(run=run, status="done")
    if queue.done:
        how.say(f"{run.place} holds every trial of this sweep, so there is nothing to train.")
    else:
        ended = _train_missing(ended, planned, queue, progress, how)
    if ended.status == "failed" and not progress.done:
        return ended
    if ended.status == "done":
        _put_together(run, keys, how, finished=planned.sweep.branch is None)
    written = _written(ended, planned, how)
    if ended.status == "done" and (written.branches is None or written.branches.is_complete):
        try:
            run.checkpoints.remove_folder()  # no trial goes on from one, also of earlier processes
        except OSError as error:
            how.say(
                f"{run.checkpoints} is no longer needed but can't be removed; you may delete it: "
                f"{error}"
            )
    return written


def queue_of(
    run: RunFiles, planned: Plan, progress: Progress, say: Callable[[str], None] = lambda text: None
) -> Queue:
    """The searches, brought to the state that the run's files record, and their progress."""
    sweep, anew = planned.sweep, 0
    branching = branching_of(sweep, planned.studies) if sweep.branch else None
    queue: Queue = branching or Director(
        planned.studies, sweep.seed, lambda study: sweep.resources.ranks(study.batch_size)
    )
    for study in planned.studies:
        trials, more = trials_within(run, study)
        anew += more
        for finished in trials:
            if finished.outcome.status != "failed":
                queue.load(finished)
                progress.load(finished)
    if anew:
        say(
            f"The sweep asks for more than before, so up to {anew} trials that had ended begin "
            f"anew."
        )
    queue.begin()
    if branching is not None:
        states = States(folder=run.checkpoints)
        if not all(states.file(step).is_file() for step in branching.needed_states):
            say("States of the trunk are missing that branches begin with, so it is trained again.")
            # From its start: it would go on behind the states that are missing.
            Checkpoint.of(branching.trunk, run.checkpoints, 0).place.remove()
            branching.train_trunk_again()
    for key, search in queue.searches.items():
        progress.follow(key, search)
    return queue


def _train_missing(
    ended: Ended, planned: Plan, queue: Queue, progress: Progress, how: How
) -> Ended:
    """Trains what the queue asks for, and shows progress."""
    run, interrupted = ended.run, Event()
    again = sum(study.most_repeats for study in planned.studies)
    how.say(
        f"{counted(len(planned.studies), 'study')}, "
        f"{counted(queue.planned - progress.done, 'trial')} to train "
        f"({progress.done} are done already)"
        f"{f', and up to {again} repeats of the best trials' if again else ''}; the run is "
        f"{run.place}"
    )
    job = Job(
        run=run,
        sweep=planned.sweep,
        studies=[search.study for search in queue.searches.values()],
        data_dir=how.data_dir,
        asked_to_end=interrupted.is_set,
    )
    try:
        with (
            how.open_executor(job) as executor,
            heeded(interrupted, lambda: progress.notes.append(ENDING)),
            closing(Trackers(how.track, run, queue, planned.sweep.name, how.say)) as trackers,
            how.showing(run, progress),
        ):
            complete = dispatcher_of(
                run, queue, planned.sweep, executor, progress,
                listeners=[trackers.hear], asked_to_end=interrupted.is_set,
            ).train()  # fmt: skip
    except KeyboardInterrupt:
        return replace(ended, status="interrupted")
    except SweepFailed as failed:
        return replace(ended, status="failed", error=str(failed))
    share = [None, *(session["busy_share"] for session in run.sessions())][-1]
    if share is not None:
        how.say(f"The slots were busy {share:.0%} of the time until no trial was left to start.")
    return replace(ended, status="done" if complete else "interrupted")


def _put_together(run: RunFiles, keys: Sequence[StudyKey], how: How, *, finished: bool) -> None:
    """Merges the files of single trials into one per study, which is faster to read. Storage that
    refuses this leaves the files as they are."""
    try:
        run.in_parallel(partial(run.put_together, finished=finished), keys)
    except OSError as error:
        how.say(
            f"The files of single trials can't be merged and stay as they are. Nothing is lost, "
            f"but reading the run is slower: {error}"
        )


def _written(ended: Ended, planned: Plan, how: How) -> Ended:
    """Writes the answer that the run's files give, and adds it to what ended. What was measured is
    written first, since it does not depend on what can be said about it."""
    run = ended.run
    try:
        run.check_place()
        if planned.sweep.branch is not None:
            found = answer_in(run)
            ended, reached = replace(ended, branches=found), not found.queue.problems
            write_branches(found)
        else:
            rows = frontier_of(run)
            ended, reached = replace(ended, rows=rows), all(row.reached for row in rows)
            write_frontier(run, rows)
        if ended.status == "done" and not reached:
            ended = replace(ended, status="unreached")
        return _with_page(ended, how)
    except OSError as error:
        unwritten = (
            f"The answer can't be written to {run.place}: {error}. The measurements are kept; "
            f"`orchestrate report` writes the page."
        )
        return replace(ended, status="failed", error=ended.error or unwritten)


def _with_page(ended: Ended, how: How) -> Ended:
    from orchestrator.report import write_page_of

    run, page = ended.run, ended.run.page
    try:
        write_page_of(run, ended.branches or ended.rows, page)
    except OSError:
        raise
    except Exception as error:
        how.say(mistake("The report", error))
        return ended
    return replace(ended, page=str(page))
