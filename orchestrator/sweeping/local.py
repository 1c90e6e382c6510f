"""The executor that trains in this process, one pack after another, without Ray."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager

from orchestrator.files.cores import cores
from orchestrator.planning.outlook import seconds_at_most
from orchestrator.planning.sweep import Faults
from orchestrator.records import BadInput
from orchestrator.search import PackRace
from orchestrator.sweeping.executor import Executor, Job, News, Pack
from orchestrator.sweeping.log import logging_to
from orchestrator.sweeping.tasks import Tasks, failure_by
from orchestrator.training import Left, Ranks, gpus_here, one_thread

IDLE_SECONDS = 0.1
"""Seconds to wait for news while nothing trains: the run may not be writable for a while."""

NEWS_SECONDS = 1.0
"""Seconds of training after which news is told. Trials that ended since are written together."""

FEW_SECONDS = 10.0
"""Seconds of work for which Ray is not started by itself: to start it takes as long, and the second
slot of a small machine would save half of them."""


def why_here(job: Job) -> str | None:
    """The reason why Ray can't help to train these studies on this machine; None if it can, or if
    the sweep asks for what only Ray does. The same at each call, so that a run goes on alike."""
    asked, faults, studies = job.sweep.resources, job.sweep.faults, job.studies
    if (
        asked.on(gpus_here()).gpus_per_device
        or asked.cpus_per_rank > 1
        or max(asked.ranks(study.batch_size) for study in studies) > 1
        or faults.hang_seconds != Faults().hang_seconds
    ):
        return None
    if cores() == 1:
        return "this machine has one core"
    with one_thread():
        few = seconds_at_most(studies, job.data_dir) <= FEW_SECONDS
    return f"all trials together take less than {FEW_SECONDS:g} s" if few else None


@contextmanager
def in_this_process(job: Job, *, raise_errors: bool = True) -> Iterator[Executor]:
    """An executor that trains in this process, on one thread of the CPU. With `raise_errors`, an
    exception in the code of a workload is passed on, for example to a debugger. Otherwise, the
    trial is tried again and at last recorded as failed, as on a cluster."""
    resources = job.sweep.resources
    if several := [
        s for s in job.studies if s.program is None and resources.ranks(s.batch_size) > 1
    ]:
        size = several[0].batch_size
        raise BadInput(
            f"--no-ray trains on one rank, but a trial at batch size {size:,} takes "
            f"{resources.ranks(size)}, whose sums differ in the last digits. Train it with "
            f"Ray, or with `resources.max_devices: 1`.",
            code="several-ranks",
        )
    if resources.gpus_per_device:
        raise BadInput(
            f"--no-ray trains on the CPU, but resources.gpus_per_device is "
            f"{resources.gpus_per_device:g}. Leave one of them out.",
            code="not-together",
        )
    tasks = Tasks.of(job, resources)
    with (
        job.run.log() as log,
        logging_to(log),
        one_thread(),
        closing(Local(tasks, job.asked_to_end, raise_errors=raise_errors)) as executor,
    ):
        yield executor


class Local(Executor):
    def __init__(
        self, tasks: Tasks, asked_to_end: Callable[[], bool], *, raise_errors: bool
    ) -> None:
        self._asked_to_end, self._raise_errors = asked_to_end, raise_errors
        self._tasks, self.resources, self.data_dir = tasks, tasks.resources, tasks.data_dir
        self.ranks = max(self.resources.ranks(study.batch_size) for study in tasks.studies)
        self._ranks = Ranks()
        self._training: Generator[News | None, None, None] | None = None
        self._error: Exception | SystemExit | None = None
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
                    if each.done or each.failure:
                        self._training = None
                # What comes next may take as long again.
                now = time.monotonic()
                if now + (now - began) >= deadline or self._asked_to_end():
                    break
        except (Exception, SystemExit) as error:
            if not news:
                raise
            self._error = error
        return news

    def _train(self, pack: Pack) -> Generator[News | None, None, None]:
        """Yields after each measurement, when the dispatcher may end the sweep."""
        yield News(serial=pack.serial, started=True)
        devices = self.resources.devices(pack.study, self._tasks.hang_seconds)
        try:
            yield from self._tasks.train(pack, PackRace(pack.study), self._ranks, devices)
        # A trial may call `sys.exit`.
        except (Exception, SystemExit) as error:
            # Of a program, it is an error of storage, which has no place in a user's code. In a
            # stack, the cause may be the stack, and it is not known which of its trials raised.
            is_theirs = pack.width == 1 and pack.study.program is None
            if is_theirs and self._raise_errors and not isinstance(error, Left):
                raise
            yield News(serial=pack.serial, failure=failure_by(error))

    def leave(self) -> bool:
        self._ranks.notice.set()
        return True

    def close(self) -> None:
        """Ends a training that an interrupted sweep leaves. Otherwise Python would, at any time
        later, perhaps in the middle of another one."""
        if self._training is not None:
            self._training.close()
            self._training = None
