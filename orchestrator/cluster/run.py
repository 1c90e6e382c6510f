"""One Tune experiment for a whole sweep: every study's trials through one searcher."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray import tune
from ray.air._internal import usage
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from orchestrator.cluster.board import open_board
from orchestrator.cluster.folder import UserFolder
from orchestrator.cluster.gang import Gang, GangSettings
from orchestrator.cluster.machines import Cluster, fit_resources, places
from orchestrator.cluster.metrics import Metrics
from orchestrator.cluster.recorder import OfThisProcess, Recorder
from orchestrator.cluster.tracking import Trackers
from orchestrator.progress import Progress
from orchestrator.records import SweepFailed
from orchestrator.results import Run
from orchestrator.search import Director
from orchestrator.sweep import Sweep


def run_trials(
    run: Run,
    director: Director,
    sweep: Sweep,
    *,
    cluster: Cluster,
    progress: Progress,
    data_dir: Path | None = None,
    trackers: Trackers | None = None,
) -> bool:
    """Trains what `director` asks for and writes each trial to `run` as it ends.

    Returns whether all was trained: False after an interrupt. Raises `SweepFailed` where nothing
    but failures came in.
    """
    studies = tuple(search.study for search in director.searches.values())
    resources = fit_resources(sweep.resources, cluster)
    settings = GangSettings(
        studies=studies,
        resources=resources,
        data_dir=data_dir and data_dir.resolve(),
        folder=UserFolder.here({study.workload for study in studies}),
        checkpoints=run.place.absolute() / "checkpoints",
        checkpoint_seconds=sweep.checkpoint.every_seconds,
        hang_seconds=sweep.faults.hang_seconds,
        board=open_board(),
    )
    ranks = places(resources, cluster)
    largest = max(resources.ranks(study.batch_size) for study in studies)
    progress.slots = max(1, ranks // largest)
    metrics = Metrics(sweep.name, ranks)
    recorder = Recorder(
        run, settings, director, progress, metrics, trackers, sweep.faults.max_failures
    )
    # Tune reads the trainable anew for every trial: it holds no more than it must.
    bundles = [settings.bundles({"study": number}) for number in range(len(studies))]
    trainable = tune.with_resources(
        tune.with_parameters(Gang, settings=settings),
        lambda config: tune.PlacementGroupFactory(bundles[config["study"]], strategy="PACK"),
    )
    with (
        tempfile.TemporaryDirectory(prefix="orchestrate-") as scratch,
        _quiet_tune(pending=2 if cluster.embedded else progress.slots),
    ):
        tuner = tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(
                search_alg=_Source(recorder),
                scheduler=_InOrder(),
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
                # Trials are tried again by us, which can wait between attempts.
                failure_config=tune.FailureConfig(max_failures=0),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                log_to_file=False,
            ),
        )
        tuner.fit()
    recorder.settle()
    run.add_session(recorder.usage.summary(ranks))
    if recorder.hopeless:
        raise SweepFailed(
            f"Nothing but failures ({recorder.failures} so far), so the sweep was stopped. "
            f"The last error:\n{recorder.last_error}"
        )
    if director.done:
        settings.checkpoints.remove_folder()
    return director.done


class _Source(OfThisProcess, Searcher):
    """Hands Tune the trials that the director asks for, and those that are due once more."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def suggest(self, trial_id: str) -> Any:
        config = self._recorder.next_config()
        return config if config or not self._recorder.over else Searcher.FINISHED

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Nothing: the recorder has heard of it."""

    # Tune saves and restores searchers; ours is derived from the run's files instead.
    def save(self, checkpoint_path: str) -> None:
        """Nothing to save."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore."""


class _InOrder(FIFOScheduler):
    """Tune's own, but it doesn't look through all trials there ever were at each step, and it gives
    no gang that is free to a trial whose own gang is starting. Tune would end that one then: where
    trials are shorter than a start, again and again, and one gang would train the whole sweep."""

    def __init__(self) -> None:
        super().__init__()
        self._coming: list[Any] = []

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self._coming.append(trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        self._coming = [trial for trial in self._coming if trial.status == "PENDING"]
        controller = tune_controller._tune_controller
        for trial in self._coming:
            gang = controller._trial_to_actor.get(trial)
            if gang is None or not controller._actor_manager.is_actor_started(gang):
                return trial
        return None


class _GiveUp(OfThisProcess, tune.Stopper):
    """Ends a sweep in which nothing works."""

    def __init__(self, recorder: Recorder) -> None:
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
    # For statistics that are off, Tune would import each tracker that is installed: two seconds.
    count_callbacks, usage.tag_callbacks = usage.tag_callbacks, lambda callbacks: False
    try:
        yield
    finally:
        usage.tag_callbacks = count_callbacks
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
