"""The trials of a sweep in this process, one after another: no Ray, same files, same answers."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.cluster.progress import Progress
from orchestrator.cluster.usage import Usage
from orchestrator.planning.sweep import Sweep
from orchestrator.records import FinishedTrial, Measurement
from orchestrator.results import Run
from orchestrator.search import Director, Proposal, ending
from orchestrator.training import Checkpoint, Ranks, one_thread, train


def train_alone(
    run: Run,
    director: Director,
    sweep: Sweep,
    *,
    progress: Progress,
    data_dir: Path | None = None,
    asked_to_end: Callable[[], bool] = lambda: False,
) -> bool:
    """Trains what `director` asks for, and writes each trial to `run` as it ends; whether that was
    all: False once it was `asked_to_end`. What the code of a workload raises goes through, to a
    debugger perhaps, where a cluster would try again and take note of a failed trial."""
    usage = Usage()
    with one_thread():
        while not asked_to_end() and (proposal := director.next()) is not None:
            usage.last_start = time.time()
            progress.start(proposal.trial)
            finished = _train(run, sweep, proposal, data_dir, asked_to_end)
            progress.stop(proposal.trial)
            if finished is None:
                break
            run.write(finished)
            director.record(finished)
            key = finished.trial.study.key
            progress.follow(key, director.searches[key])
            progress.keep(finished)
            usage.add(finished)
    run.add_session(usage.summary(ranks=1))
    return director.done


def _train(
    run: Run,
    sweep: Sweep,
    proposal: Proposal,
    data_dir: Path | None,
    asked_to_end: Callable[[], bool],
) -> FinishedTrial | None:
    """None if it did not end."""
    trial, began = proposal.trial, time.time()
    measurements: list[Measurement] = []
    name = f"{trial.study.key}-trial-{trial.index:05d}-{trial.repeat}.pt".replace("/", "-")
    training = train(
        trial,
        Ranks(),
        data_dir=data_dir,
        checkpoint=Checkpoint(
            place=run.place.absolute() / "checkpoints" / name,
            every_seconds=sweep.checkpoint.every_seconds,
        ),
        ending=lambda unmet, upcoming: ending(
            trial.study,
            proposal.bounds,
            proposal.limit,
            unmet=unmet,
            upcoming=upcoming,
            index=trial.index,
        ),
    )
    while not asked_to_end():
        try:
            measurements.append(next(training))
        except StopIteration as end:
            return FinishedTrial(
                trial=trial,
                outcome=end.value,
                measurements=tuple(measurements),
                started=began,
                where=f"{platform.node()}:{os.getpid()}",
            )
    training.close()
    return None
