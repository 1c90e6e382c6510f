"""Ranks: the processes that train one trial together. Code that uses `Ranks` is the same for one
rank and for many."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import struct
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from fcntl import ioctl
from threading import Event
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from orchestrator.records import RankFailed, frames_of_user

JOIN_TIMEOUT = timedelta(seconds=120)
"""Time within which all ranks must join the process group."""

SIOCGIFADDR = 0x8915
"""Linux's request code for the address of a network interface."""

INTERFACES = {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} - os.environ.keys()
"""Environment variables that choose the network interface by which ranks exchange gradients,
without those that the user has set."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process's place among the ranks that train a trial together. A single rank needs no
    process group."""

    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    store: Any = None
    """The torch store through which the ranks met, and to which a failing rank writes the reason;
    None for a single rank."""
    notice: Event = field(default_factory=Event)
    """Is set where this rank's process is about to be ended, for instance with its machine."""

    @property
    def are_leaving(self) -> bool:
        """Whether any rank has had notice. All ranks must ask."""
        return bool(self.maximum(self.notice.is_set()))

    def say_why(self, reason: str) -> None:
        """Writes the reason why this rank fails. Call it before the rank ends with an error."""
        if self.store is not None:
            self.store.set("reason", reason)

    def reason(self) -> str | None:
        """Returns the reason that a failing rank has written; None if there is none."""
        if self.store is None or not self.store.check(["reason"]):
            return None
        return str(self.store.get("reason").decode())

    def wrap(self, model: nn.Module) -> nn.Module:
        """Returns `model` wrapped: gradients are averaged over ranks while they are computed."""
        if self.count == 1:
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        # Every rank built the same model from the same seed, so nothing needs to be broadcast.
        return DistributedDataParallel(
            model, device_ids=devices, init_sync=False, forward_sync_buffers=False
        )

    def without_averaging(self, model: nn.Module) -> AbstractContextManager[None]:
        """Leaves gradients unaveraged within the context, for all micro-batches but the last."""
        return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()

    def average(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replaces the gradients with their mean over ranks, in the memory that they have: none may
        be left. `wrap` does the same while gradients are computed."""
        for gradient in (p.grad for p in parameters if p.grad is not None):
            dist.all_reduce(gradient)
            gradient.div_(self.count)

    def gather(self, value: Any) -> list[Any]:
        """Returns every rank's `value`, in order of rank."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def from_first(self, value: Any) -> Any:
        """Returns rank 0's `value`."""
        if self.count == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]

    def sum(self, values: Tensor) -> Tensor:
        """Replaces `values` with their element-wise sum over ranks, and returns them."""
        if self.count > 1:
            dist.all_reduce(values)
        return values

    def maximum(self, value: float) -> float:
        """Returns the largest of all ranks' values."""
        if self.count == 1:
            return value
        values = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return float(values)

    def synchronise(self) -> None:
        """Waits until the device is idle, so that time is measured correctly."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def of_others(error: BaseException) -> bool:
    """Whether the error is that of an operation that all ranks take part in, so that another rank
    is at fault."""
    frames = traceback.extract_tb(error.__traceback__)
    calls = any("torch/distributed" in frame.filename for frame in frames)
    # Gradients are averaged within the backward pass, whose frames don't tell.
    return calls or bool(re.search("gloo|NCCL", str(error)))


@contextmanager
def open_ranks(
    *,
    rank: int,
    count: int,
    host: str,
    port: int,
    device: torch.device,
    listener: socket.socket | None = None,
) -> Iterator[Ranks]:
    """Joins the process group for which rank 0 listens at `host`:`port`, and leaves it at the end
    of the context. Rank 0 passes the `listener` that is bound there."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        _compute_alike()
    if count == 1:
        yield Ranks(device=device)
        return
    store = dist.TCPStore(
        host,
        port,
        count,
        is_master=rank == 0,
        timeout=JOIN_TIMEOUT,
        master_listen_fd=None if listener is None else listener.detach(),
    )
    if (interface := _interface_to(host)) is not None:
        os.environ.update(dict.fromkeys(INTERFACES, interface))
    # Objects, such as a whole checkpoint, don't go through the memory of a GPU.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=count)
    try:
        yield Ranks(rank=rank, count=count, device=device, store=store)
    finally:
        dist.destroy_process_group()


@contextmanager
def one_thread() -> Iterator[None]:
    """Makes torch compute with one thread within the context. For two examples, starting other
    threads takes longer than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def listen_at(host: str) -> tuple[socket.socket, int]:
    """Returns a socket bound to `host`, an address of this machine, and its port. Without it, torch
    would listen on every network interface."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.bind((host, 0))
    return listener, int(listener.getsockname()[1])


def _interface_to(host: str) -> str | None:
    """Returns the network interface by which this machine reaches `host`; None if Linux does not
    tell it. Without it, gloo takes the interface of the address that the machine's name resolves
    to, and NCCL takes the first interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((host, 1))  # this sends nothing
        address = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
                if answer[20:24] == address:
                    return name
    return None


@contextmanager
def launch_ranks(
    count: int, follow: Callable[..., None], *arguments: Any
) -> Iterator[tuple[Ranks, list[int]]]:
    """Makes this process rank 0 of `count` ranks on this machine. Starts the other ranks, which run
    `follow(ranks, *arguments)`. Yields the ranks, and the process ids in order of rank."""
    host = "127.0.0.1"
    listener, port = listen_at(host) if count > 1 else (None, 0)
    places: list[dict[str, Any]] = [
        {"rank": rank, "count": count, "host": host, "port": port, "device": device}
        for rank, device in enumerate(_local_devices(count))
    ]
    context = multiprocessing.get_context("spawn")
    others = [
        context.Process(target=_join_and_follow, args=(place, follow, arguments))
        for place in places[1:]
    ]
    for process in others:
        process.start()
    try:
        with open_ranks(**places[0], listener=listener) as ranks:
            try:
                yield ranks, [os.getpid(), *(process.pid or 0 for process in others)]
            except Exception as error:
                if of_others(error) and (reason := ranks.reason()) is not None:
                    raise RankFailed(reason) from None
                raise
    except BaseException:
        for process in others:
            process.kill()
        raise
    finally:
        # The other ranks end by themselves when the work is done. They are not daemons, since
        # daemons may not start the worker processes that fetch data.
        for process in others:
            process.join(timeout=5)
            process.kill()


def _join_and_follow(
    place: Mapping[str, Any], follow: Callable[..., None], arguments: Sequence[Any]
) -> None:
    torch.set_num_threads(1)
    # Only the first rank handles an interrupt (SIGINT); it then ends the other ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open_ranks(**place) as ranks:
        try:
            follow(ranks, *arguments)
        except Exception as error:
            if not of_others(error):
                ranks.say_why(frames_of_user(error) or traceback.format_exc())
            os._exit(1)  # rank 0 waits for this one, and tells what it said


def _compute_alike() -> None:
    """Makes CUDA compute the same bits every time, and in float32 instead of TF32."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    # If an operation has no deterministic kernel, torch warns instead of raising an error, since a
    # training that is not bit-reproducible is better than none.
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Otherwise every tensor that an operation is about to write would be filled first.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def strictly_alike() -> Iterator[None]:
    """Refuses operations without a deterministic kernel, instead of warning. Those that have both,
    such as the gradient of attention, take the deterministic one only then."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=True)


def _local_devices(count: int) -> list[torch.device]:
    """Returns a separate GPU for each rank or, if there are too few GPUs, the CPU for all ranks."""
    if gpus_here() >= count:
        return [torch.device("cuda", rank) for rank in range(count)]
    return [torch.device("cpu")] * count


def gpus_here() -> int:
    """Number of GPUs of this machine that torch can use."""
    return torch.cuda.device_count()
