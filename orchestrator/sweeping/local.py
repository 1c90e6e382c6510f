"""The executor that trains in this process, one pack after another, without Ray."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from orchestrator.planning.sweep import Sweep
from orchestrator.programs.trials import ProgramFailed
from orchestrator.records import BadInput, Study
from orchestrator.results import Run
from orchestrator.search import PackRace
from orchestrator.sweeping.executor import Executor, Failure, News, Pack
from orchestrator.sweeping.log import logging_to
from orchestrator.sweeping.tasks import Tasks
from orchestrator.training import Ranks, one_thread

IDLE_SECONDS = 0.1
"""Seconds to wait for news while nothing trains: the run may not be writable for a while."""

NEWS_SECONDS = 1.0
"""Seconds of training after which news is told. Trials that ended since are written together."""


@contextmanager
def in_this_process(
    run: Run,
    sweep: Sweep,
    studies: Sequence[Study],
    data_dir: Path | None,
    asked_to_end: Callable[[], bool] = lambda: False,
) -> Iterator[Executor]:
    """An executor that trains in this process, on one thread of the CPU."""
    if several := [
        s for s in studies if s.program is None and sweep.resources.ranks(s.batch_size) > 1
    ]:
        size = several[0].batch_size
        raise BadInput(
            f"--no-ray trains on one rank, but a trial at batch size {size:,} takes "
            f"{sweep.resources.ranks(size)}, whose sums differ in the last digits. Train it with "
            f"Ray, or with `resources.max_devices: 1`.",
            code="several-ranks",
        )
    if sweep.resources.gpus_per_device:
        raise BadInput(
            f"--no-ray trains on the CPU, but resources.gpus_per_device is "
            f"{sweep.resources.gpus_per_device:g}. Leave one of them out.",
            code="conflicting-options",
        )
    tasks = Tasks(
        studies=studies,
        resources=sweep.resources,
        data_dir=data_dir,
        checkpoints=run.checkpoints.absolute(),
        checkpoint_seconds=sweep.checkpoint.every_seconds,
        logs=run.logs.absolute(),
        hang_seconds=sweep.faults.hang_seconds,
    )
    with (
        run.log() as log,
        logging_to(log),
        one_thread(),
        closing(Local(tasks, asked_to_end)) as executor,
    ):
        yield executor


class Local(Executor):
    def __init__(self, tasks: Tasks, asked_to_end: Callable[[], bool] = lambda: False) -> None:
        self._asked_to_end = asked_to_end
        self._tasks, self.resources, self.data_dir = tasks, tasks.resources, tasks.data_dir
        self.ranks = max(self.resources.ranks(study.batch_size) for study in tasks.studies)
        self._training: Generator[News | None, None, None] | None = None
        self._error: Exception | None = None
        """An exception in the code of a workload, until the news from before it is told."""

    @property
    def has_room(self) -> bool:
        return self._training is None

    def start(self, pack: Pack) -> None:
        # A program takes about as long to start.
        self._news_seconds = NEWS_SECONDS if pack.study.program is None else 0.0
        self._training = self._train(pack)

    def wait(self) -> Iterable[News]:
        if self._training is None:
            time.sleep(IDLE_SECONDS)
            return []
        if self._error is not None:
            raise self._error
        news: list[News] = []
        deadline = time.monotonic() + self._news_seconds
        try:
            while self._training is not None:
                began = time.monotonic()
                if (each := next(self._training)) is not None:
                    news.append(each)
                    if each.over or each.failure:
                        self._training = None
                # What comes next may take as long again.
                now = time.monotonic()
                if now + (now - began) >= deadline or self._asked_to_end():
                    break
        except Exception as error:
            if not news:
                raise
            self._error = error
        return news

    def _train(self, pack: Pack) -> Generator[News | None, None, None]:
        """Yields after each measurement, when the sweep may end. An exception in the code of a
        workload is passed on, for example to a debugger, where a cluster would try
        the trial again and record it as failed."""
        yield News(serial=pack.serial, started=True)
        race, devices = PackRace(pack.study), self._tasks.devices(pack.study)
        try:
            yield from self._tasks.train(pack, race, Ranks(), devices)
        except ProgramFailed as error:
            yield News(serial=pack.serial, failure=Failure(text=str(error), died=error.died))
        except Exception as error:
            if pack.width == 1:
                raise
            # The cause may be the stack, and it is not known which of its trials raised.
            text = f"{type(error).__name__}: {error}"
            yield News(serial=pack.serial, failure=Failure(text=text))

    def close(self) -> None:
        """Ends a training that an interrupted sweep leaves. Otherwise Python would, at any time
        later, perhaps in the middle of another one."""
        if self._training is not None:
            self._training.close()
            self._training = None
