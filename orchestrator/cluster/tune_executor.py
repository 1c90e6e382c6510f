"""The executor that trains on a Ray cluster: one experiment of Ray Tune for the whole sweep."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import ray
from ray import tune
from ray.exceptions import RayError
from ray.tune.experiment import Experiment, Trial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import SearchAlgorithm

from orchestrator.cluster import ray_internals
from orchestrator.cluster.board import last_words, open_board
from orchestrator.cluster.embedded import private_folder
from orchestrator.cluster.failures import as_known, failure_of
from orchestrator.cluster.gang import GangSettings, gang_with
from orchestrator.files.own_code import UserFolder
from orchestrator.planning.machines import Cluster, fit_resources, ranks_at_once
from orchestrator.records import StudyKey
from orchestrator.search import Bounds
from orchestrator.sweeping.executor import Executor, Job, News, Pack

IDLE_SECONDS = 20.0
"""Seconds that a gang without a trial waits for the next one, on a machine that may cost money. It
is about the time that it takes to start a gang."""


@contextmanager
def on_ray(cluster: Cluster, job: Job) -> Iterator[TuneExecutor]:
    """An executor for the sweep on the cluster that this process has joined or started."""
    settings = GangSettings.of(
        job,
        fit_resources(job.sweep.resources, cluster),
        folder=UserFolder.here(job.sweep.code_names),
        board=open_board(),
    )
    with (
        private_folder() as scratch,  # the next sweep removes it where this process is killed
        closing(TuneExecutor(settings, cluster, str(scratch))) as executor,
    ):
        yield executor


class TuneExecutor(Executor):
    """Each pack is a trial of Tune, which places it on a gang, keeps gangs warm, and shows an
    autoscaler what is wanted. Tune's event loop makes one step whenever the sweep's own loop waits
    for news."""

    def __init__(self, settings: GangSettings, cluster: Cluster, scratch: str) -> None:
        self._settings, self.resources = settings, settings.resources
        self.data_dir = settings.data_dir
        self.ranks = ranks_at_once(self.resources, cluster)
        largest = max(self.resources.ranks(study.batch_size) for study in settings.studies)
        self._places = self.ranks // largest
        self._is_elastic = not cluster.embedded
        self._gang = gang_with(settings)
        self._experiment = Experiment("sweep", self._gang, storage_path=scratch)
        self._tune = _Loop(self._experiment, _Callback(self._hear, settings.board))
        self._tune.update_max_pending_trials(max(2, self._places))
        self._news: list[News] = []
        self._waiting: set[int] = set()
        """Packs that wait for a gang."""
        self._running: dict[int, _PackTrial] = {}
        self._moved: Any = None
        """The answer of the board that is on its way."""

    @property
    def has_room(self) -> bool:
        """Gangs start in all free places at once. One after another, each of which takes seconds,
        would leave most of a large machine idle. An autoscaler has to see what is wanted, too."""
        training = len(self._running) - len(self._waiting)
        free = self._places - (0 if self._is_elastic else training)
        return len(self._waiting) < max(2, free)

    def start(self, pack: Pack) -> None:
        self._waiting.add(pack.serial)
        shape = tune.PlacementGroupFactory(self._settings.bundles(pack.study), strategy="PACK")
        trial = _PackTrial(self._gang, self._experiment, {"pack": pack}, shape)
        self._running[pack.serial] = trial
        self._tune.add_trial(trial)

    def wait(self) -> Iterable[News]:
        self._tune.step()
        news, self._news = self._news, []
        return news

    def _hear(self, news: News) -> None:
        self._news.append(news)
        self._waiting.discard(news.serial)
        if news.done or news.failure:
            self._running.pop(news.serial, None)

    def post(self, key: StudyKey, bounds: Bounds) -> None:
        self._settings.board.post.remote(repr(key), bounds)

    def moved(self) -> Collection[int] | None:
        if self._moved is None:
            self._moved = self._settings.board.moved_since.remote()
        if not ray.wait([self._moved], timeout=0)[0]:
            return None
        try:
            moved: Collection[int] = ray.get(self._moved)
        except RayError:
            return None  # without the board, nobody knows
        self._moved = None
        return moved

    def leave(self) -> bool:
        self._settings.board.end.remote()
        return True

    def end(self, serial: int) -> None:
        if (actor := self._running[serial].temporary_state.ray_actor) is not None:
            ray.kill(actor)

    def why_idle(self) -> str:
        ranks = [self._settings.bundles(study) for study in self._settings.studies]
        most = max(ranks, key=len)
        available = {name: ray.cluster_resources().get(name, 0) for name in most[0]}
        return (
            f"Trials need up to {len(most)} x {most[0]}, and the machines that are up have "
            f"{available} in total. `ray status` shows which machines are starting."
        )

    def close(self) -> None:
        self._tune.cleanup()


class _PackTrial(Trial):
    """A trial of Tune that needs no files, neither for output nor for errors, since they could not
    be written to a full disk."""

    def __init__(self, gang: type, experiment: Experiment, config: dict[str, Any], shape: Any):
        self._gang = gang
        super().__init__(
            experiment.spec["run"],
            config=config,
            storage=experiment.storage,
            placement_group_factory=shape,
        )

    def get_trainable_cls(self) -> type:
        return self._gang  # Tune would unpickle it for each trial

    def init_local_path(self) -> None:
        assert self.storage is not None
        self.storage.trial_dir_name = self.trial_id

    def handle_error(self, exc: Exception | None = None) -> None:
        self.error = exc
        self.run_metadata.num_failures += 1
        self.run_metadata.invalidate_cache()


class _Callback(tune.Callback):
    """Turns what Tune tells into news."""

    def __init__(self, hear: Callable[[News], None], board: Any) -> None:
        self._hear, self._board = hear, board

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._hear(News(serial=trial.config["pack"].serial, started=True))

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        # Removed, so that Tune doesn't keep all measurements of the sweep in memory.
        for news in result.pop("news"):
            self._hear(news)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        serial = trial.config["pack"].serial
        failure = failure_of(trial.error)
        if failure.died:
            failure = last_words(self._board, serial, failure)
        self._hear(News(serial=serial, failure=failure))


class _Loop(ray_internals.TuneController):
    """Tune's event loop, with five changes. Packs are added by the sweep's loop: while nothing
    runs, Tune would wait for its searcher and do nothing else. Gangs without a pack are kept for a
    while. Actors have no environment of their own, which would hand on credentials through Ray's
    logs. An error that Tune does not know is that of one trial. There are no snapshots, since the
    run's files are all that is needed to go on."""

    def __init__(self, experiment: Experiment, callback: tune.Callback) -> None:
        scheduler = _InOrder()
        super().__init__(
            search_alg=_Endless(),
            scheduler=scheduler,
            storage=experiment.storage,
            callbacks=[callback],
            reuse_actors=True,
        )
        scheduler.is_coming = partial(ray_internals.actor_is_coming, self)
        ray_internals.replace_parts(
            self, idle_actors=_IdleGangs(may_keep_one=True), failure=as_known
        )

    def _maybe_update_trial_queue(self) -> None:
        """Does nothing."""

    def checkpoint(self, force: bool = False, wait: bool = False) -> None:
        """Does nothing."""


class _Endless(SearchAlgorithm):
    """Stands for the searches of the sweep, so that Tune keeps its loop open."""

    def is_finished(self) -> bool:
        return False


class _InOrder(FIFOScheduler):
    """Tune's scheduler with two changes. It does not go through all trials of the experiment at
    each step. It gives no free gang to a trial for which a gang is starting: Tune would then end
    the starting gang. With trials shorter than a start, this would repeat until one gang trains the
    whole sweep."""

    is_coming: Callable[[Any], bool]

    def __init__(self) -> None:
        super().__init__()
        self._coming: list[Any] = []

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self._coming.append(trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        self._coming = [trial for trial in self._coming if trial.status == "PENDING"]
        return next((trial for trial in self._coming if not self.is_coming(trial)), None)


class _IdleGangs(ray_internals.IdleActors):
    """Keeps gangs that have no trial. Tune's class ends all but one of them as soon as no trial
    waits, so that each round and each generation of a search would start them anew."""

    _latest = -math.inf

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
