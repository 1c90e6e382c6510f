"""The trainable that Ray Tune runs: a warm gang of DDP ranks that trains one pack after another."""

from __future__ import annotations

import importlib
import os
import platform
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ray
import torch
from ray import cloudpickle, tune
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.cluster.board import Listener, Watchdog
from orchestrator.cluster.failures import Failed, machine_was_lost
from orchestrator.files.own_code import UserFolder
from orchestrator.programs.starting import Exit, Kept, Start
from orchestrator.records import Study
from orchestrator.search import PackRace
from orchestrator.sweeping.executor import Failure, News, Pack, last_lines
from orchestrator.sweeping.tasks import Tasks, failure_by
from orchestrator.training import (
    Left,
    Ranks,
    is_built_in,
    listen_at,
    of_others,
    open_ranks,
    train_pack,
)
from orchestrator.training.memory import keep_to_share

PROGRESS_SECONDS = 1.0
"""Seconds that a trial trains before it returns to Tune, whose controller can then stop it."""

VIRTUAL_GPUS = "ORCHESTRATE_VIRTUAL_GPUS"
"""Environment variable for tests: if it is set, trials that ask for a GPU train on the CPU."""

LOST_SECONDS = 10
"""Seconds that it may take until Ray knows that a process is gone."""


@dataclass(frozen=True, kw_only=True)
class GangSettings(Tasks):
    """Settings that all gangs of a sweep share. They are sent once, not with each pack."""

    folder: UserFolder
    board: Any
    """The actor that tells running trials what other trials have reached."""

    def bundles(self, study: Study) -> list[dict[str, float]]:
        """The resources of each rank. They depend only on the study, so that studies of the same
        shape share warm gangs."""
        bundle: dict[str, float] = {"CPU": self.resources.cpus_per_rank}
        if self.resources.gpus_per_device:
            bundle["GPU"] = self.resources.gpus_per_device
        count = self.resources.ranks(study.batch_size)
        if study.program is not None and study.program.launch == "once":
            return [{name: amount * count for name, amount in bundle.items()}]
        return [bundle] * count


class Gang(tune.Trainable):
    """Rank 0, which communicates with Tune. It starts the other ranks in its placement group and
    opens the process group once. With `reuse_actors`, Tune then gives it one pack after another, as
    the only entry of a config. A result holds the news of the pack since the previous result."""

    packed: bytes
    """The settings of the gang as bytes; see `gang_with`."""

    def setup(self, config: dict[str, Any]) -> None:
        settings = cloudpickle.loads(self.packed)
        _settle_in(settings)
        self._settings = settings
        self._listener = Listener(settings.board)
        self._watchdog = Watchdog(settings.board, settings.hang_seconds)
        pack: Pack = config["pack"]
        self._stack = ExitStack()
        self._peers = [_start_peer(rank) for rank in range(1, len(settings.bundles(pack.study)))]
        with self._watchdog.watching(pack.serial):
            self._ranks = self._assemble()
        self._begin(pack)

    def _assemble(self) -> Ranks:
        machines = ray.get([peer.machine.remote() for peer in self._peers])
        here = ray.util.get_node_ip_address()
        self._host = host = "127.0.0.1" if set(machines) <= {here} else here
        listener, port = listen_at(host)
        opened = partial(open_ranks, count=1 + len(self._peers), host=host, port=port)
        joining = [
            peer.join.remote(self._settings, partial(opened, rank=rank))
            for rank, peer in enumerate(self._peers, start=1)
        ]
        ranks = self._stack.enter_context(
            opened(rank=0, device=_device(self._settings), listener=listener)
        )
        ray.get(joining)
        _heed_notice(ranks)
        threading.Thread(target=self._heed_end, args=(ranks,), daemon=True).start()
        return ranks

    def _heed_end(self, ranks: Ranks) -> None:
        with suppress(RayError):
            ray.get(self._settings.board.ended.remote())
            ranks.notice.set()

    def _begin(self, pack: Pack) -> None:
        self._pack, settings = pack, self._settings
        self._following = [
            peer.follow.remote(pack) for peer in self._peers if pack.study.program is None
        ]
        starts = (Kept, *(partial(_KeptThere, peer) for peer in self._peers))
        here = settings.resources.devices(pack.study, settings.hang_seconds)
        devices = replace(here, starts=starts, host=self._host)
        race = PackRace(pack.study, partial(self._listener.bounds, repr(pack.study.key)))
        self._training = settings.train(pack, race, self._ranks, devices, self._watchdog.pulse)
        self._failure: BaseException | None = None

    def step(self) -> dict[str, Any]:
        news: list[News] = []
        done, deadline = False, time.monotonic() + PROGRESS_SECONDS
        try:
            if self._failure is not None:
                raise self._failure
            with self._watchdog.watching(self._pack.serial):
                while not done and time.monotonic() < deadline:
                    if (each := next(self._training)) is None:
                        continue
                    if done := each.done:
                        ray.get(self._following)
                    news.append(each)
        # A call of `sys.exit` in the code of a trial would end this process without a message.
        except (Exception, SystemExit) as error:
            if not news:
                raise Failed(self._reason(error)) from None
            # Trials that ended before the error are reported first.
            self._failure = error
        return {"done": done, "news": news}

    def _reason(self, error: BaseException) -> Failure:
        """Why the pack ended, in a form that can be sent to the driver."""
        if of_others(error) or isinstance(error, RayError):
            if (reason := self._ranks.reason()) is not None:
                return Failure(text=reason)
            lost = error if isinstance(error, RayActorError) else _lost(self._following)
            if lost is not None:
                text = f"a rank was lost: {last_lines(str(lost))}"
                return Failure(text=text, died=True, machine_lost=machine_was_lost(lost))
        return failure_by(error)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._begin(new_config["pack"])
        return True

    def cleanup(self) -> None:
        self._training.close()
        for peer in self._peers:
            ray.kill(peer)
        self._stack.close()


class _Peer:
    """A rank other than 0."""

    def machine(self) -> str:
        return str(ray.util.get_node_ip_address())

    def join(self, settings: GangSettings, opened: Callable[..., Any]) -> None:
        _settle_in(settings)
        self._settings, self._stack = settings, ExitStack()
        self._ranks = self._stack.enter_context(opened(device=_device(settings)))
        _heed_notice(self._ranks)

    def follow(self, pack: Pack) -> None:
        settings = self._settings
        try:
            for _ in train_pack(
                settings.tasks(pack), 1, self._ranks,
                micro_batch=pack.micro_batch, data_dir=settings.data_dir,
            ):  # fmt: skip
                pass
        except Left:
            return
        except BaseException as error:
            # The other ranks wait for this one in a collective operation. Only its end frees them.
            if not of_others(error):
                self._ranks.say_why(last_lines(traceback.format_exc()))
            os._exit(1)

    def start(self, start: Start) -> None:
        self._kept = Kept(start)

    def ended(self) -> Exit | None:
        return self._kept.ended()

    def end(self) -> None:
        self._kept.end()

    def close(self) -> None:
        self._kept.close()


class _KeptThere:
    """A process of a program in the care of a peer."""

    def __init__(self, peer: Any, start: Start) -> None:
        self._peer = peer
        ray.get(peer.start.remote(start))
        self._asked = peer.ended.remote()

    def ended(self, wait: float = 0.0) -> Exit | None:
        if not ray.wait([self._asked], timeout=wait)[0]:
            return None
        found: Exit | None = ray.get(self._asked)
        if found is None:
            self._asked = self._peer.ended.remote()
        return found

    def end(self) -> None:
        self._peer.end.remote()

    def close(self) -> None:
        with suppress(RayError):  # then its keeper ends it
            ray.get(self._peer.close.remote())


def _lost(following: Sequence[Any]) -> RayActorError | None:
    """The reason why another rank is gone, or None. A rank that is not lost ends its call when its
    collective operation fails."""
    left, deadline = [*following], time.monotonic() + LOST_SECONDS
    while left and (seconds := deadline - time.monotonic()) > 0:
        ended, left = ray.wait(left, timeout=seconds)
        for other in ended:
            try:
                ray.get(other)
            except RayActorError as error:
                return error
            except RayError:  # its operation failed, since another rank is gone
                continue
    return None


def gang_with(settings: GangSettings) -> type[Gang]:
    """The class `Gang` with these settings as bytes. In Ray's object store (`tune.with_parameters`)
    the settings would belong to the process that drives the sweep. Ray ends that process without a
    message when it fails to record there that such an object is lost."""
    return type("Gang", (Gang,), {"packed": cloudpickle.dumps(settings)})


def _settle_in(settings: GangSettings) -> None:
    """Prepares a worker process: the number of its threads, and a current folder in which relative
    paths mean the same as for the user."""
    if not all(is_built_in(study.optimizer) for study in settings.studies):
        # Otherwise the first optimizer would import it during the measured time of a trial.
        importlib.import_module("torch._dynamo")
    torch.set_num_threads(settings.resources.cpus_per_rank)
    # Otherwise Tune would change to the trial's folder, now and before each trial.
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    settings.folder.enter()


def _heed_notice(ranks: Ranks) -> None:
    """Lets trials save their state when this process is told to end, as on a machine that is taken
    away. Without this, it would end at once."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: ranks.notice.set())


def _start_peer(rank: int) -> Any:
    group = get_current_placement_group()
    assert group is not None, "Tune starts every gang in a placement group"
    bundle = group.bundle_specs[rank]
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
    amounts = {"num_cpus": bundle.get("CPU", 0), "num_gpus": bundle.get("GPU", 0)}
    return ray.remote(_Peer).options(**amounts, scheduling_strategy=strategy).remote()


def _device(settings: GangSettings) -> torch.device:
    """The device of this process. Ray shows it only its GPUs; without any it trains on the CPU. If
    programs train, which may not even need torch, it needs none itself."""
    if all(study.program is not None for study in settings.studies):
        return torch.device("cpu")
    if not ray.get_gpu_ids() or os.environ.get(VIRTUAL_GPUS):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"Ray gave a GPU of {platform.node()} to a trial, but torch {torch.__version__} can't "
            f"use it. Install a torch that is built for CUDA and a driver that is new enough for "
            f"it, or write resources.gpus_per_device: 0 to train on CPUs."
        )
    device = torch.device("cuda", 0)
    if (share := settings.resources.gpus_per_device or 1) < 1:
        keep_to_share(share, device)
    return device
