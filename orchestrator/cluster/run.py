"""One Tune experiment for a whole sweep: every study's trials through one searcher."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from orchestrator.cluster.connect import Cluster, fit_resources
from orchestrator.cluster.folder import UserFolder
from orchestrator.cluster.gang import FINISHED, Gang, GangSettings
from orchestrator.progress import Progress
from orchestrator.records import FinishedTrial, Outcome, Study, SweepFailed, Trial
from orchestrator.results import Run
from orchestrator.sweep import Resources

logger = logging.getLogger(__name__)

MAX_FAILURES = 2
"""How often a trial is tried again after its workers died or its code raised."""

GIVE_UP_AFTER = 6
"""A sweep that has seen so many failures and no trial end well is broken: more would fail alike."""

ERROR_LINES = 20


def run_trials(
    run: Run,
    trials: Sequence[Trial],
    studies: Sequence[Study],
    *,
    cluster: Cluster,
    resources: Resources,
    progress: Progress,
    checkpoint_seconds: float = 60,
    data_dir: Path | None = None,
) -> bool:
    """Trains `trials` of `studies` and writes each to `run` as it ends.

    Returns whether all were trained: False after an interrupt. Raises `SweepFailed` where nothing
    but failures came in.
    """
    resources = fit_resources(resources, cluster)
    settings = GangSettings(
        studies=tuple(studies),
        resources=resources,
        data_dir=data_dir and data_dir.resolve(),
        folder=UserFolder.here({study.workload for study in studies}),
        checkpoints=run.path.resolve() / "checkpoints",
        checkpoint_seconds=checkpoint_seconds,
    )
    configs = settings.configs(trials)
    recorder = _Recorder(run, settings, progress)
    devices = cluster.gpus if resources.gpus_per_device else cluster.cpus
    progress.slots = max(1, devices // max(map(settings.ranks, configs)))
    trainable = tune.with_resources(
        tune.with_parameters(Gang, settings=settings),
        lambda config: tune.PlacementGroupFactory(settings.bundles(config), strategy="PACK"),
    )
    with (
        tempfile.TemporaryDirectory(prefix="orchestrate-") as scratch,
        _quiet_tune(pending=2 if cluster.embedded else progress.slots),
    ):
        tuner = tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(
                search_alg=_Queue(configs, recorder.micro_batches),
                num_samples=-1,
                reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.trial_id,
                trial_name_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="sweep",
                storage_path=scratch,
                verbose=0,
                callbacks=[recorder],
                stop=_GiveUp(recorder),
                failure_config=tune.FailureConfig(max_failures=MAX_FAILURES),
                log_to_file=False,
            ),
        )
        tuner.fit()
    if recorder.hopeless:
        raise SweepFailed(
            f"Nothing but failures ({recorder.failures} so far), so the sweep was stopped. "
            f"The last error:\n{recorder.last_error}"
        )
    complete = recorder.ended == len(trials)
    if complete:
        shutil.rmtree(settings.checkpoints, ignore_errors=True)
    return complete


class _Queue(Searcher):
    """Hands Tune the trials in their order."""

    def __init__(self, configs: Sequence[dict[str, Any]], micro_batches: Mapping[int, int]) -> None:
        super().__init__()
        self._waiting = deque(configs)
        self._micro_batches = micro_batches

    def suggest(self, trial_id: str) -> Any:
        if not self._waiting:
            return Searcher.FINISHED
        config = self._waiting.popleft()
        return {**config, "micro_batch": self._micro_batches.get(config["study"])}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Nothing: the design doesn't depend on results."""

    # Tune saves and restores searchers; ours is derived from the run's files instead.
    def save(self, checkpoint_path: str) -> None:
        """Nothing to save."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore."""


class _Recorder(tune.Callback):
    """Writes each trial to the run the moment it ends."""

    def __init__(self, run: Run, settings: GangSettings, progress: Progress) -> None:
        self._run, self._settings, self._progress = run, settings, progress
        self.ended = 0
        self.failures = 0
        self.last_error = ""
        self.micro_batches: dict[int, int] = {}
        """Study -> what is known to fit, once something did not."""
        self._any_success = False

    @property
    def hopeless(self) -> bool:
        enough = self.failures >= GIVE_UP_AFTER or self.ended == self._progress.planned
        return self.failures > 0 and not self._any_success and enough

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        ours = self._settings.trial(trial.config)
        self._progress.start(ours.study.key, ours.index)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        # Popped, so that Tune doesn't keep every measurement of the sweep in memory.
        finished = result.pop(FINISHED, None)
        if finished is not None:
            outcome = finished.outcome
            if outcome.status == "failed":
                self.failures += 1
                self.last_error = outcome.error or ""
            else:
                self._any_success = True
            if outcome.micro_batch is not None:
                self.micro_batches[trial.config["study"]] = outcome.micro_batch
            self._keep(finished)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        ours = self._settings.trial(trial.config)
        logger.warning("%s trial %d failed; it is tried again", ours.study.key, ours.index)
        self._progress.stop(ours.study.key, ours.index)
        self._note_failure(trial)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._note_failure(trial)
        outcome = Outcome(status="failed", steps=0, seconds=0.0, error=self.last_error)
        self._keep(FinishedTrial(trial=self._settings.trial(trial.config), outcome=outcome))

    def _note_failure(self, trial: Any) -> None:
        self.last_error = _error_text(trial)
        # A node that goes away takes many trials with it and says nothing about the sweep.
        if "ActorDiedError" not in self.last_error:
            self.failures += 1

    def _keep(self, finished: FinishedTrial) -> None:
        key = finished.trial.study.key
        self._run.write(finished)
        self.ended += 1
        self._progress.stop(key, finished.trial.index)
        self._progress.studies[key].add(finished.outcome.status, finished.outcome.steps)


def _error_text(trial: Any) -> str:
    """The end of the traceback that Tune keeps beside the trial."""
    try:
        lines = Path(trial.error_file).read_text(encoding="utf-8").strip().splitlines()
    except (OSError, TypeError):
        return "the worker died without a word"
    return "\n".join(lines[-ERROR_LINES:])


class _GiveUp(tune.Stopper):
    """Ends a sweep in which nothing works."""

    def __init__(self, recorder: _Recorder) -> None:
        self._recorder = recorder

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._recorder.hopeless


@contextmanager
def _quiet_tune(*, pending: int) -> Iterator[None]:
    """Tune without its loggers (the main cost of small trials), its tables and its snapshots.
    An autoscaler sees as much demand as there are trials `pending`."""
    settings = {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "RAY_AIR_NEW_OUTPUT": "0",
        "TUNE_GLOBAL_CHECKPOINT_S": "1000000",
        "TUNE_PRINT_ALL_TRIAL_ERRORS": "1",
        "TUNE_MAX_PENDING_TRIALS_PG": str(max(pending, 2)),
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
