"""The Tune trainable: a warm gang of DDP ranks that trains trial after trial."""

from __future__ import annotations

import importlib
import os
import platform
import time
import traceback
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import ray
import torch
from ray import cloudpickle, tune
from ray.exceptions import RayActorError
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.cluster.board import Listener, Watchdog, numbered
from orchestrator.cluster.failures import Raised, RankLost, last_lines, machine_was_lost
from orchestrator.cluster.folder import UserFolder
from orchestrator.files.places import Place
from orchestrator.planning.sweep import Resources
from orchestrator.records import (
    FinishedTrial,
    Goal,
    Measurement,
    Outcome,
    Study,
    StudyKey,
    Trial,
)
from orchestrator.search import Proposal, ending, tighter
from orchestrator.training import (
    Checkpoint,
    Ranks,
    follow,
    is_built_in,
    listen_at,
    open_ranks,
    train,
)

PROGRESS_SECONDS = 1.0
"""How long a trial trains before it returns to Tune, whose controller can then stop it."""

VIRTUAL_GPUS = "ORCHESTRATE_VIRTUAL_GPUS"
"""For tests: where this is set, trials that ask for a GPU train on the CPU."""

LOST_SECONDS = 10
"""How long it may take until Ray knows that a process is gone."""

FINISHED = "finished"
"""The key of a trial's last result that holds its `FinishedTrial`."""

REACHES_RUN = "reaches_run"
"""And the one that says whether its machine has the run's folder, where checkpoints go."""


@dataclass(frozen=True, kw_only=True)
class GangSettings:
    """What every gang of a sweep knows; sent once, not with each trial."""

    studies: Sequence[Study]
    resources: Resources
    data_dir: Path | None
    folder: UserFolder
    checkpoints: Place
    """Where trials that are not over yet leave their state, if this place is shared."""
    checkpoint_seconds: float
    hang_seconds: float | None
    board: Any
    """An actor that tells running trials what others have reached."""

    def options(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What `train` is told beside the trial."""
        name = "study-{study:04d}-trial-{index:05d}-{repeat}.pt".format(**config)
        return {
            "data_dir": self.data_dir,
            "micro_batch": config.get("micro_batch"),
            "checkpoint": Checkpoint(
                place=self.checkpoints / name, every_seconds=self.checkpoint_seconds
            ),
        }

    def ranks(self, config: Mapping[str, Any]) -> int:
        return self.resources.ranks(self.studies[config["study"]].batch_size)

    def bundles(self, config: Mapping[str, Any]) -> list[dict[str, float]]:
        """The resources of each rank: a function of the study, so that studies of one shape share
        warm gangs."""
        bundle: dict[str, float] = {"CPU": self.resources.cpus_per_rank}
        if self.resources.gpus_per_device:
            bundle["GPU"] = self.resources.gpus_per_device
        return [bundle] * self.ranks(config)

    def config(self, proposal: Proposal) -> dict[str, Any]:
        """A trial as Tune carries it: small, plain, readable in the dashboard."""
        trial = proposal.trial
        return {
            "study": self.number(trial.study),
            "index": trial.index,
            "repeat": trial.repeat,
            "seed": trial.seed,
            "params": dict(trial.params),
            "bounds": proposal.bounds,
            "limit": proposal.limit,
        }

    def number(self, study: Study) -> int:
        return self._numbers[study.key]

    @cached_property
    def _numbers(self) -> dict[StudyKey, int]:
        return {study.key: number for number, study in enumerate(self.studies)}

    def trial(self, config: Mapping[str, Any]) -> Trial:
        return Trial(
            study=self.studies[config["study"]],
            index=config["index"],
            seed=config["seed"],
            params=config["params"],
            repeat=config["repeat"],
        )


class Gang(tune.Trainable):
    """Rank 0, which Tune talks to. It starts the other ranks inside its placement group and opens
    the process group once; `reuse_actors` then hands it one trial after another."""

    packed: bytes
    """Its settings: see `gang_with`."""

    def setup(self, config: dict[str, Any]) -> None:
        settings = cloudpickle.loads(self.packed)
        _settle_in(settings)
        self._settings = settings
        self._listener = Listener(settings.board)
        self._watchdog = Watchdog(settings.board, settings.hang_seconds)
        self._reaches_run = (settings.checkpoints.parent / "sweep.yaml").is_file()
        self._count = settings.ranks(config)
        self._stack = ExitStack()
        self._peers = [_start_peer(rank) for rank in range(1, self._count)]
        with self._watchdog.over(numbered(config)):
            self._ranks = self._assemble()
        self._begin(config)

    def _assemble(self) -> Ranks:
        machines = ray.get([peer.machine.remote() for peer in self._peers])
        here = ray.util.get_node_ip_address()
        host = "127.0.0.1" if set(machines) <= {here} else here
        listener, port = listen_at(host)
        joining = [
            peer.join.remote(rank, self._count, host, port, self._settings)
            for rank, peer in enumerate(self._peers, start=1)
        ]
        ranks = self._stack.enter_context(
            open_ranks(
                rank=0, count=self._count, host=host, port=port, device=_device(), listener=listener
            )
        )
        ray.get(joining)
        return ranks

    def _begin(self, config: dict[str, Any]) -> None:
        self._config = config
        self._trial = self._settings.trial(config)
        self._measurements: list[Measurement] = []
        self._began = time.time()
        options = self._settings.options(config)
        self._following = [peer.follow.remote(self._trial, options) for peer in self._peers]
        self._training: Generator[Measurement, None, Outcome] = train(
            self._trial,
            self._ranks,
            **options,
            ending=self._ending,
            pulse=self._watchdog.pulse,
        )

    def _ending(
        self, unmet: Collection[Goal], upcoming: int
    ) -> Literal["dominated", "paused"] | None:
        """Whether the trial ends here, as far as is known by now."""
        study, bounds = self._trial.study, self._config["bounds"]
        if study.stop_dominated and not self._trial.repeat:
            bounds = tighter(bounds, self._listener.bounds(self._config["study"]))
        return ending(
            study,
            bounds,
            self._config["limit"],
            unmet=unmet,
            upcoming=upcoming,
            index=self._trial.index,
        )

    def step(self) -> dict[str, Any]:
        deadline = time.monotonic() + PROGRESS_SECONDS
        try:
            with self._watchdog.over(numbered(self._config)):
                while time.monotonic() < deadline:
                    self._measurements.append(next(self._training))
        except StopIteration as end:
            ray.get(self._following)
            finished = FinishedTrial(
                trial=self._trial,
                outcome=end.value,
                measurements=tuple(self._measurements),
                ranks=self._count,
                started=self._began,
                where=f"{platform.node()}:{os.getpid()}",
            )
            return {"done": True, FINISHED: finished, REACHES_RUN: self._reaches_run}
        # A call of `sys.exit` in the code of a trial would end this process without a word.
        except (Exception, SystemExit) as error:
            if (reason := self._ranks.reason()) is not None:
                raise Raised(reason) from None
            if (lost := _lost(self._following)) is not None:
                raise RankLost(str(lost), machine_lost=machine_was_lost(lost)) from None
            raise Raised(last_lines("".join(traceback.format_exception(error)))) from None
        return {"done": False}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._begin(new_config)
        return True

    def cleanup(self) -> None:
        self._training.close()
        for peer in self._peers:
            ray.kill(peer)
        self._stack.close()

    # Tune wants both to exist; a trial begins anew when its gang is lost.
    def save_checkpoint(self, checkpoint_dir: str) -> None:
        return None

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        return None


class _Peer:
    """A rank other than 0."""

    def machine(self) -> str:
        return str(ray.util.get_node_ip_address())

    def join(self, rank: int, count: int, host: str, port: int, settings: GangSettings) -> None:
        _settle_in(settings)
        self._stack = ExitStack()
        self._ranks = self._stack.enter_context(
            open_ranks(rank=rank, count=count, host=host, port=port, device=_device())
        )

    def follow(self, trial: Trial, options: dict[str, Any]) -> None:
        try:
            follow(self._ranks, trial, options)
        except BaseException:
            # The others wait for this rank in a collective: only its end ends that.
            self._ranks.say_why(last_lines(traceback.format_exc()))
            os._exit(1)


def _lost(following: Sequence[Any]) -> RayActorError | None:
    """Why another rank is gone, if one is; one that is there ends with the collective it is in."""
    for other in following:
        try:
            ray.get(other, timeout=LOST_SECONDS)
        except RayActorError as error:
            return error
        except Exception:  # noqa: S112 - its own error was ours to raise
            continue
    return None


def gang_with(settings: GangSettings) -> type[Gang]:
    """The class carries them, as bytes, since Tune unpickles it for every trial. In Ray's object
    store (`tune.with_parameters`) they would belong to the process that drives the sweep: Ray ends
    that one without a word when it tries to write there that such an object is lost."""
    return type("Gang", (Gang,), {"packed": cloudpickle.dumps(settings)})


def _settle_in(settings: GangSettings) -> None:
    """Readies a worker process: its cores, and paths that mean what they mean to the user."""
    if not all(is_built_in(study.optimizer) for study in settings.studies):
        # The first optimizer of a library would load it, in the time of a trial's training.
        importlib.import_module("torch._dynamo")
    torch.set_num_threads(settings.resources.cpus_per_rank)
    # Tune would move to a folder of the trial's, now and again before each trial.
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    settings.folder.enter()


def _start_peer(rank: int) -> Any:
    group = get_current_placement_group()
    assert group is not None, "Tune starts every gang in a placement group"
    bundle = group.bundle_specs[rank]
    place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
    return (
        ray.remote(_Peer)
        .options(
            num_cpus=bundle.get("CPU", 0), num_gpus=bundle.get("GPU", 0), scheduling_strategy=place
        )
        .remote()
    )


def _device() -> torch.device:
    """Ray shows a process the GPUs that are its own; a gang without any trains on the CPU."""
    if not ray.get_gpu_ids() or os.environ.get(VIRTUAL_GPUS):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"Ray gave a GPU of {platform.node()} to a trial, but torch {torch.__version__} can't "
            f"use it: install a torch built for CUDA and a driver that is new enough for it, or "
            f"write resources.gpus_per_device: 0."
        )
    return torch.device("cuda", 0)
