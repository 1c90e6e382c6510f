"""The process that reports to a tracker; it gives whole trials to Ray Tune's callback."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import ray

from orchestrator.records import FinishedTrial, Study, TrialKey
from orchestrator.results import Run

TELLING_NOBODY_ELSE = {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}

UPLOAD_SECONDS = 600.0
"""Seconds that wandb may take for a trial, for which Tune starts a process."""


class Teller:
    """An actor on the machine of the driver. Each tracker has one, so that none waits for
    another."""

    def __init__(
        self, tracker: str, run: Run, sweep: str, folder: str, settings: Mapping[str, str]
    ) -> None:
        os.nice(10)  # training has priority
        os.chdir(folder)
        os.environ.update({**TELLING_NOBODY_ELSE, **settings})
        self._tracker, self._run, self._sweep = tracker, run, sweep
        self._files = run.place.local or Path.cwd()
        self._callback: Any = None

    def tell(self, finished: FinishedTrial) -> None:
        if self._callback is None:
            self._callback = _OPEN[self._tracker](self._sweep, self._files)
        callback, trial = self._callback, _Told(finished)
        if self._tracker == "tensorboard":
            trial.local_path = str(self._files / "tensorboard" / _inside(str(trial)))
        try:
            callback.log_trial_start(trial)
            for number, measurement in enumerate(finished.measurements, start=1):
                # The callbacks read the step from this key.
                step = {"training_iteration": measurement.step}
                callback.log_trial_result(number, trial, {**measurement.metrics, **step})
            callback.log_trial_end(trial, failed=finished.outcome.status == "failed")
            # Raises the errors of wandb's processes, which Tune does not report.
            uploads = [*getattr(callback, "_trial_logging_futures", {}).values()]
            ray.get(uploads, timeout=UPLOAD_SECONDS)
        finally:
            callback.on_experiment_end([])

    def tell_stored(self, study: Study, trials: Collection[TrialKey]) -> None:
        errors = []
        for finished in self._run.finished(study):
            if finished.trial.key in trials:
                try:
                    self.tell(finished)
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]


class _Told:
    """A stand-in for a trial of Tune, with the attributes that the callbacks read."""

    def __init__(self, finished: FinishedTrial) -> None:
        trial, key, status = finished.trial, finished.trial.study.key, finished.outcome.status
        self.trial_id = uuid.uuid4().hex[:12]
        self.experiment_dir_name = f"{key.workload}/{key.recipe}/batch-{key.batch_size}"
        """The name by which wandb groups trials."""
        self.local_path = str(Path.cwd())
        self._repeat = f"-repeat-{trial.repeat}" if trial.repeat else ""
        self._index = trial.index
        self.config = {
            **trial.params,
            "workload": key.workload,
            "recipe": key.recipe,
            "optimizer": trial.study.optimizer,
            "batch_size": key.batch_size,
            "trial": trial.index,
            "repeat": trial.repeat,
            "seed": trial.seed,
            # Trials that may go on are not reported, so a paused one counts as dominated here.
            "status": "dominated" if status == "paused" else status,
        }
        self.evaluated_params = self.config

    def __str__(self) -> str:
        return f"{self.experiment_dir_name}/trial-{self._index}{self._repeat}"

    def init_local_path(self) -> None:
        Path(self.local_path).mkdir(parents=True, exist_ok=True)


def _inside(name: str) -> str:
    """The name as a relative path that stays inside its parent. The name of a user's workload could
    lead anywhere."""
    return "/".join(part for part in name.split("/") if part not in {"", ".", ".."})


def _open_tensorboard(sweep: str, files: Path) -> Any:
    from ray.tune.logger import TBXLoggerCallback

    return TBXLoggerCallback()


def _open_mlflow(sweep: str, files: Path) -> Any:
    from ray.air.integrations.mlflow import MLflowLoggerCallback

    where = os.environ.get("MLFLOW_TRACKING_URI")
    if not where:
        (files / "mlflow").mkdir(exist_ok=True)
        where = f"sqlite:///{files}/mlflow/mlflow.db"
    callback = MLflowLoggerCallback(tracking_uri=where, experiment_name=sweep)
    callback.setup()
    return callback


def _open_wandb(sweep: str, files: Path) -> Any:
    import wandb
    from ray.air.integrations.wandb import WandbLoggerCallback

    from orchestrator.cluster.ray_internals import wandb_actor

    class Logging(wandb_actor()):  # type: ignore[misc]
        def run(self) -> None:
            super().run()
            # Tune ends this process at once, so data that wandb has not sent yet would be lost.
            wandb.teardown()

    class Callback(WandbLoggerCallback):
        _logger_actor_cls = Logging

    settings = wandb.Settings()
    # These settings would record the resources of this process, which trains nothing.
    settings.x_disable_meta = settings.x_disable_stats = True
    settings.update_from_env_vars(dict(os.environ))
    where = os.environ.get("WANDB_DIR") or str(files)
    callback = Callback(project=sweep, upload_timeout=1, dir=where, settings=settings)
    callback.setup()
    # The settings hold the key. From the environment, Tune would pass it on through Ray's logs.
    os.environ.pop("WANDB_API_KEY", None)
    return callback


_OPEN = {"tensorboard": _open_tensorboard, "mlflow": _open_mlflow, "wandb": _open_wandb}
