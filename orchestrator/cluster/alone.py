"""Trains the trials of a sweep in this process, one pack after another, without Ray. The files and
answers are the same as with Ray."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from orchestrator.cluster.progress import Progress
from orchestrator.cluster.usage import Usage
from orchestrator.planning.sweep import Sweep
from orchestrator.planning.widths import decide
from orchestrator.records import FinishedTrial, Study, Trial
from orchestrator.results import Run
from orchestrator.search import PackRace, Proposal, Queue
from orchestrator.sweeping.tracking import Trackers
from orchestrator.training import (
    Checkpoint,
    Ranks,
    States,
    Task,
    one_thread,
    time_alone,
    train_pack,
)

logger = logging.getLogger(__name__)


def train_alone(
    run: Run,
    director: Queue,
    sweep: Sweep,
    *,
    progress: Progress,
    data_dir: Path | None = None,
    trackers: Trackers | None = None,
    asked_to_end: Callable[[], bool] = lambda: False,
) -> bool:
    """Trains the trials that `director` asks for and writes each to `run` when it ends. Returns
    whether all were trained; False if it was `asked_to_end`. An exception in the code of a workload
    is passed on, for example to a debugger, whereas a cluster would try the trial again and record
    it as failed."""
    usage = Usage()
    studies = [search.study for search in director.searches.values()]
    widths = decide(run, studies, sweep.resources, "cpu", data_dir)

    def most(study: Study, waiting: int) -> int:
        # Stacked trials are taken all at once; otherwise each choice depends on earlier trials.
        return waiting if widths[study.key] > 1 else 1

    with one_thread():
        while not asked_to_end() and (pack := director.next_pack(most)):
            first = pack[0].trial
            width = widths[first.study.key]
            if width > 1 and first.study.key not in (timed := run.timed()):
                seconds = time_alone(first, Ranks(), data_dir)
                run.write_timed({**timed, first.study.key: seconds})
            for finished in _train(run, sweep, pack, width, data_dir, progress, asked_to_end):
                progress.stop(finished.trial, finished.outcome)
                run.write(finished)
                director.record(finished)
                if trackers is not None:
                    trackers.hear(finished)
                key = finished.trial.study.key
                progress.follow(key, director.searches[key])
                progress.keep(finished)
                usage.add(finished)
    run.add_session(usage.summary(ranks=1))
    return director.done


def _train(
    run: Run,
    sweep: Sweep,
    pack: list[Proposal],
    width: int,
    data_dir: Path | None,
    progress: Progress,
    asked_to_end: Callable[[], bool],
) -> Iterator[FinishedTrial]:
    """Yields the trials that end before the user asks for the end."""
    race = PackRace(pack[0].trial.study)
    tasks = [
        Task(
            trial=proposal.trial,
            checkpoint=Checkpoint(
                place=run.place.absolute() / "checkpoints" / _name(proposal.trial),
                every_seconds=sweep.checkpoint.every_seconds,
            ),
            ending=partial(race.ending, proposal),
            states=States(
                folder=run.place.absolute() / "checkpoints",
                keep_at=proposal.trial.study.states_at,
                begin_at=proposal.trial.study.start_step,
            ),
        )
        for proposal in pack
    ]

    def train(tasks: list[Task], width: int) -> Iterator[FinishedTrial]:
        left = {task.trial.key: task for task in tasks}
        events = train_pack(
            tasks, width, Ranks(), data_dir=data_dir,
            begun=lambda task: progress.start(task.trial),
        )  # fmt: skip
        try:
            with closing(events):
                while not asked_to_end() and (event := next(events, None)) is not None:
                    if isinstance(finished := event[1], FinishedTrial):
                        race.record(finished)
                        del left[finished.trial.key]
                        yield finished
        except Exception as error:
            if width == 1:
                raise
            # The cause may be the stack, and it is not known which trial raised. An exception
            # outside of a stack is also easier to debug.
            logger.warning(
                "%s: a stack of trials raised %s; its trials are trained one at a time",
                pack[0].trial.study.key,
                error,
            )
            for task in left.values():
                yield from train([task], width if len(left) > 1 else 1)

    return train(tasks, width)


def _name(trial: Trial) -> str:
    return f"{trial.study.key}-trial-{trial.index:05d}-{trial.repeat}.pt".replace("/", "-")
