"""Reports each trial to other trackers, once it is over for good. A process for each tracker does
it, so that no tracker delays the training, ends it or is imported by it."""

from __future__ import annotations

import logging
import math
import os
import re
import select
import signal
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired
from threading import Thread
from typing import Any

from orchestrator.files.places import Place
from orchestrator.records import BadInput, FinishedTrial, Study, Trial, TrialKey, refuse_unknown
from orchestrator.results import RunFiles
from orchestrator.search import AnySearch, Queue

logger = logging.getLogger(__name__)

PACKAGES = {"mlflow": "mlflow", "tensorboard": "tensorboardX", "wandb": "wandb"}
ELSEWHERE = {"mlflow": "MLFLOW_TRACKING_URI", "wandb": "WANDB_DIR"}
"""Tracker -> the environment variable that says where it writes, if not into the run's folder."""
TELLING_NOBODY_ELSE = {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}

PATIENCE_SECONDS = 120.0
"""Seconds that a tracker may take for a trial once nothing else is waited for."""

Say = Callable[[str], None]
What = FinishedTrial | tuple[Study, TrialKey]
"""What a tracker is told: a trial, or which trial of a study it is to read from the run."""


def check_trackers(names: Iterable[str], place: Place) -> None:
    """Raises `BadInput` for trackers that a run at `place` can't use, before anything starts."""
    for name in names:
        refuse_unknown("tracker", [name], PACKAGES)
        spec = find_spec(PACKAGES[name])
        # A folder of that name that is no package, such as wandb makes, has no origin.
        if spec is None or spec.origin is None:
            raise BadInput(
                f"--track {name} needs the package {PACKAGES[name]}, which is not installed. "
                f"Install it: pip install 'orchestrate-batch-size[{name}]'",
                code="missing-package",
            )
        variable = ELSEWHERE.get(name)
        if place.local is None and not (variable and os.environ.get(variable)):
            remedy = f"Set {variable}, or name" if variable else "Leave it out, or name"
            raise BadInput(
                f"--track {name} writes to a folder of this machine, but the run is {place}. "
                f"{remedy} a local folder with --out.",
                code="needs-a-folder",
            )


class Trackers:
    """The trackers, as the driver uses them. It sends trials to them and waits for none before the
    end. A paused trial is reported when its end is known, perhaps in a later session."""

    def __init__(
        self, names: Iterable[str], run: RunFiles, queue: Queue, sweep: str, say: Say
    ) -> None:
        self._searches, there = queue.searches, RunFiles(run.place.absolute())
        self._tellers = [_Teller(name, there, sweep, say) for name in dict.fromkeys(names)]
        self._aside = {key: search.set_aside() for key, search in self._searches.items()}

    def hear(self, finished: FinishedTrial, search: AnySearch) -> None:
        """Reports a trial that ended, after the run and the queue have it."""
        key = finished.trial.key
        if search.is_final(key):
            self._aside[key.study].discard(key)
            self._tell(finished)
        else:
            self._aside[key.study].add(key)
        self._catch_up(search)

    def close(self) -> None:
        try:
            for search in self._searches.values():
                self._catch_up(search)
            for teller in self._tellers:
                teller.wait()
        finally:
            for teller in self._tellers:
                teller.end()

    def _catch_up(self, search: AnySearch) -> None:
        """Reports the paused trials of a study that is over: they won't go on."""
        aside = self._aside[search.study.key]
        while search.done and aside:
            self._tell((search.study, aside.pop()))

    def _tell(self, what: What) -> None:
        for teller in self._tellers:
            teller.tell(what)


class _Teller:
    """The process that reports to one tracker, as the driver uses it. A thread waits for it."""

    def __init__(self, name: str, run: RunFiles, sweep: str, say: Say) -> None:
        self._name, self._say, self._failed = name, say, False
        self._waiting: deque[Future[None]] = deque()
        """Trials that may not be answered yet."""
        self._line, other = Pipe()
        with other:
            self._process = Popen(
                [sys.executable, "-P", "-m", __name__, str(other.fileno())],
                env={**TELLING_NOBODY_ELSE, **os.environ}, pass_fds=[other.fileno()],
                stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL,
                process_group=0,  # a Ctrl-C is for the driver alone
            )  # fmt: skip
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(self._line.send, (name, run, sweep))

    def tell(self, what: What) -> None:
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        self._waiting.append(self._thread.submit(self._ask, what))

    def _ask(self, what: What) -> None:
        try:
            self._line.send(what)
            reason = self._line.recv()
        except (EOFError, OSError):
            reason = "its process has ended"
        if reason and not self._failed:
            self._failed = True
            logger.warning("the sweep goes on, but %s missed a trial: %s", self._name, reason)

    def wait(self) -> None:
        """Waits until the tracker has all trials, or takes too long for one."""
        if left := wait(self._waiting, timeout=1).not_done:
            self._say(f"Waiting until {self._name} has received the last {len(left)} trials.")
        try:
            for answer in self._waiting:
                answer.result(PATIENCE_SECONDS)
        except TimeoutError:
            self._failed = True
            logger.warning("%s takes too long, so no more trials are sent to it", self._name)
        if self._failed:
            self._say(
                f"{self._name} did not receive all trials. The run has them all; log.txt says why."
            )

    def end(self) -> None:
        """Ends the process, at once if it has not answered."""
        idle = all(answer.done() for answer in self._waiting)
        self._thread.shutdown(wait=False, cancel_futures=True)
        if idle:
            self._line.close()
        try:
            self._process.wait(PATIENCE_SECONDS if idle else 0)
        except TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _serve(line: Connection) -> None:
    """Reports trials to a tracker, in its process."""
    os.nice(10)  # training has priority
    Thread(target=_end_with_driver, args=[line.fileno()], daemon=True).start()
    name, run, sweep = line.recv()
    files = run.place.local or Path.cwd()
    stored: dict[TrialKey, FinishedTrial] = {}
    while True:
        what, reason = line.recv(), None
        try:
            if not isinstance(what, FinishedTrial):
                study, key = what
                if key not in stored:
                    stored = {finished.trial.key: finished for finished in run.finished(study)}
                what = stored.pop(key)
            _TELL[name](what, sweep, files)
        except Exception as error:
            reason = _reason(error)
        line.send(reason)


def _end_with_driver(line: int) -> None:
    """Ends this process when the driver has ended, even if a tracker does not return."""
    hang_up = select.poll()
    hang_up.register(line, 0)
    hang_up.poll()
    time.sleep(PATIENCE_SECONDS)
    os._exit(1)


def _reason(error: Exception) -> str:
    """The first line of an error, without the passwords that addresses in it may have."""
    line = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
    return re.sub(r"(?<=://)\S*@|\?\S+", "", line)


def _name(trial: Trial) -> str:
    key, repeat = trial.study.key, f"-repeat-{trial.repeat}" if trial.repeat else ""
    return f"{key.workload}/{key.recipe}/batch-{key.batch_size}/trial-{trial.index}{repeat}"


def _config(finished: FinishedTrial) -> dict[str, Any]:
    trial, status = finished.trial, finished.outcome.status
    return {
        **trial.params,
        **asdict(trial.study.key),
        "optimizer": trial.study.optimizer,
        "trial": trial.index,
        "repeat": trial.repeat,
        "seed": trial.seed,
        # Trials that may go on are not reported, so a paused one counts as dominated here.
        "status": "dominated" if status == "paused" else status,
    }


def _tell_tensorboard(finished: FinishedTrial, sweep: str, files: Path) -> None:
    from tensorboardX import SummaryWriter
    from tensorboardX.summary import hparams

    # The name of a user's workload could lead anywhere.
    parts = [part for part in _name(finished.trial).split("/") if part.strip(".")]
    with SummaryWriter(str(files.joinpath("tensorboard", *parts))) as writer:
        metrics: dict[str, float] = {}
        for measurement in finished.measurements:
            metrics = {n: v for n, v in measurement.metrics.items() if not math.isnan(v)}
            for name, value in metrics.items():
                writer.add_scalar(name, value, measurement.step)
        for summary in hparams(_config(finished), metrics):
            writer.file_writer.add_summary(summary)


def _tell_mlflow(finished: FinishedTrial, sweep: str, files: Path) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    where = os.environ.get("MLFLOW_TRACKING_URI")
    if not where:
        (files / "mlflow").mkdir(exist_ok=True)
        where = f"sqlite:///{files}/mlflow/mlflow.db"
    client = MlflowClient(where)
    experiment = os.environ.get("MLFLOW_EXPERIMENT_ID")
    if not experiment:
        found = client.get_experiment_by_name(sweep)
        experiment = found.experiment_id if found else client.create_experiment(sweep)
    run = client.create_run(experiment, run_name=_name(finished.trial)).info.run_id
    client.log_batch(run, params=[Param(k, str(v)) for k, v in _config(finished).items()])
    now = int(time.time() * 1000)
    values = [
        Metric(k, v, now, m.step) for m in finished.measurements for k, v in m.metrics.items()
    ]
    for first in range(0, len(values), 1000):  # it takes no more at once
        client.log_batch(run, values[first : first + 1000])
    client.set_terminated(run, "FAILED" if finished.outcome.status == "failed" else "FINISHED")


def _tell_wandb(finished: FinishedTrial, sweep: str, files: Path) -> None:
    import wandb

    name = _name(finished.trial)
    # Without the resources of this process, which trains nothing.
    settings = wandb.Settings(x_disable_meta=True, x_disable_stats=True)
    with wandb.init(
        project=sweep, group=name.rpartition("/")[0], name=name, id=uuid.uuid4().hex[:12],
        config=_config(finished), settings=settings, dir=os.environ.get("WANDB_DIR") or str(files),
    ) as run:  # fmt: skip
        for measurement in finished.measurements:
            run.log(dict(measurement.metrics), step=measurement.step)


_TELL = {"tensorboard": _tell_tensorboard, "mlflow": _tell_mlflow, "wandb": _tell_wandb}

if __name__ == "__main__":
    with suppress(EOFError, OSError):  # the driver has ended
        _serve(Connection(int(sys.argv[1])))
