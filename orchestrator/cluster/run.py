"""Runs a whole sweep as one Tune experiment; one searcher supplies the trials of every study."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from orchestrator.cluster import ray_internals
from orchestrator.cluster.board import open_board
from orchestrator.cluster.failures import failures_of_trials_only
from orchestrator.cluster.folder import UserFolder
from orchestrator.cluster.gang import GangSettings, gang_with
from orchestrator.cluster.machines import Cluster, fit_resources, places
from orchestrator.cluster.metrics import Metrics
from orchestrator.cluster.packs import Packs
from orchestrator.cluster.progress import Progress
from orchestrator.cluster.recorder import OfThisProcess, Recorder
from orchestrator.planning.sweep import Sweep
from orchestrator.planning.widths import decide
from orchestrator.results import Run
from orchestrator.search import Queue
from orchestrator.sweeping.tracking import Trackers
from orchestrator.training.width import Kind

IDLE_SECONDS = 20.0
"""Seconds that a gang without a trial waits for the next one, on a machine that may cost money. It
is about the time that it takes to start a gang."""


def run_trials(
    run: Run,
    director: Queue,
    sweep: Sweep,
    *,
    cluster: Cluster,
    progress: Progress,
    data_dir: Path | None = None,
    trackers: Trackers | None = None,
    asked_to_end: Callable[[], bool] = lambda: False,
) -> bool:
    """Trains the trials that `director` asks for and writes each to `run` when it ends.

    Returns whether all were trained: False if it was `asked_to_end`, or if a search can't go on
    without trials that it lost. Raises `SweepFailed` if all trials failed or the run could not be
    written.
    """
    settings = _gang_settings(run, director, sweep, cluster, data_dir)
    kind: Kind = "cuda" if settings.resources.gpus_per_device else "cpu"
    widths = decide(run, settings.studies, settings.resources, kind, data_dir)
    ranks = places(settings.resources, cluster)
    largest = max(settings.resources.ranks(study.batch_size) for study in settings.studies)
    progress.slots = max(1, ranks // largest)
    metrics = Metrics(sweep.name, ranks)
    packs = Packs(settings, widths, director, progress.slots, sweep.faults, run.timed())
    recorder = Recorder(run, settings, packs, director, progress, metrics, trackers, sweep.faults)

    def ended() -> bool:
        return asked_to_end() or recorder.hopeless

    with (
        closing(recorder.merger),
        tempfile.TemporaryDirectory(prefix="orchestrate-") as scratch,
        _quiet_tune(pending=2 if cluster.embedded else progress.slots),
        failures_of_trials_only(),
    ):
        _tuner(settings, recorder, ended, scratch).fit()
    recorder.settle(asked_to_end=asked_to_end)
    with suppress(OSError):  # on a full disk only this record is lost
        run.add_session(recorder.usage.summary(ranks))
    return director.done


def _gang_settings(
    run: Run, director: Queue, sweep: Sweep, cluster: Cluster, data_dir: Path | None
) -> GangSettings:
    studies = tuple(search.study for search in director.searches.values())
    return GangSettings(
        studies=studies,
        resources=fit_resources(sweep.resources, cluster),
        data_dir=data_dir and data_dir.resolve(),
        folder=UserFolder.here(sweep.places),
        checkpoints=run.place.absolute() / "checkpoints",
        checkpoint_seconds=sweep.checkpoint.every_seconds,
        hang_seconds=sweep.faults.hang_seconds,
        board=open_board(),
    )


def _tuner(
    settings: GangSettings, recorder: Recorder, ended: Callable[[], bool], scratch: str
) -> tune.Tuner:
    bundles = [settings.bundles({"study": number}) for number in range(len(settings.studies))]
    trainable = tune.with_resources(
        gang_with(settings),
        lambda config: tune.PlacementGroupFactory(bundles[config["study"]], strategy="PACK"),
    )
    return tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=_Source(recorder, ended),
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
            stop=_Ending(ended),
            # We try trials again ourselves, since we can wait between attempts.
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            log_to_file=False,
        ),
    )


class _Source(OfThisProcess, Searcher):
    """Gives Tune the trials that the director asks for, and those that are due for another
    attempt."""

    def __init__(self, recorder: Recorder, ended: Callable[[], bool]) -> None:
        super().__init__()
        self._recorder, self._ended = recorder, ended

    def suggest(self, trial_id: str) -> Any:
        # While no trial runs, Tune asks for one for ten minutes and checks nothing else.
        if self._ended():
            return Searcher.FINISHED
        config = self._recorder.next_config()
        return config if config or not self._recorder.over else Searcher.FINISHED

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Does nothing, since the recorder receives the results."""

    # Tune saves and restores searchers. Ours is derived from the run's files instead.
    def save(self, checkpoint_path: str) -> None:
        """Does nothing."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing."""


class _InOrder(FIFOScheduler):
    """Tune's scheduler with two changes. It does not go through all trials of the experiment at
    each step. It gives no free gang to a trial for which a gang is starting: Tune would then end
    the starting gang. With trials shorter than a start, this would repeat until one gang trains the
    whole sweep."""

    def __init__(self) -> None:
        super().__init__()
        self._coming: list[Any] = []

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self._coming.append(trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        self._coming = [trial for trial in self._coming if trial.status == "PENDING"]
        coming = partial(ray_internals.actor_is_coming, tune_controller)
        return next((trial for trial in self._coming if not coming(trial)), None)


class _IdleGangs(ray_internals.IdleActors):
    """Keeps gangs that have no trial. Tune's class ends all but one of them as soon as no trial
    waits, so that each round and each generation of a search would start them anew."""

    def __init__(self, may_keep_one: bool) -> None:
        super().__init__(may_keep_one)
        self._latest = -math.inf

    def cache_object(self, key: Any, obj: Any) -> bool:
        if self._others_wait():
            is_kept: bool = super().cache_object(key, obj)
            return is_kept
        self._latest = time.monotonic()
        self._cached_objects[key].append(obj)
        self._num_cached_objects += 1
        return True

    def flush_cached_objects(self, force_all: bool = False) -> Generator[Any, None, None]:
        if force_all or self._others_wait() or time.monotonic() - self._latest > IDLE_SECONDS:
            yield from super().flush_cached_objects(force_all)

    def _others_wait(self) -> bool:
        """Whether trials wait for a gang of another shape, which may need the place of these."""
        return any(
            wanted and not self._cached_objects[k] for k, wanted in self._max_num_objects.items()
        )


class _Ending(OfThisProcess, tune.Stopper):
    """Ends a sweep in which every trial fails, or that the user asked to end."""

    def __init__(self, ended: Callable[[], bool]) -> None:
        self._ended = ended

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._ended()


@contextmanager
def _quiet_tune(*, pending: int) -> Iterator[None]:
    """Turns off Tune's loggers (the main cost of small trials), its tables and its snapshots during
    the `with` block. `pending` is the number of waiting trials that an autoscaler sees as
    demand."""
    settings = {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "RAY_AIR_NEW_OUTPUT": "0",
        "TUNE_GLOBAL_CHECKPOINT_S": "1000000",
        "TUNE_PRINT_ALL_TRIAL_ERRORS": "1",
        "TUNE_MAX_PENDING_TRIALS_PG": str(max(pending, 2)),
        # We handle interrupts ourselves, and a gang that hangs need not be waited for.
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
        "TUNE_FORCE_TRIAL_CLEANUP_S": "5",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        with ray_internals.leaner_tune(_IdleGangs):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
