"""The processes that train one trial together: rank and sums over ranks, with or without them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from fcntl import ioctl
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

JOIN_TIMEOUT = timedelta(seconds=120)

SIOCGIFADDR = 0x8915
"""Asks Linux for the address of a network interface."""

INTERFACES = {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} - os.environ.keys()
"""By which ranks exchange gradients: those that the user hasn't chosen."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among those that train a trial together. One rank needs no process group."""

    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    store: Any = None
    """What the ranks met at, and where one that fails says why; None for a single one."""

    def say_why(self, reason: str) -> None:
        """Called by a rank that is about to end with an error of its own."""
        if self.store is not None:
            self.store.set("reason", reason)

    def reason(self) -> str | None:
        """Why another rank has ended, as far as it said so."""
        if self.store is None or not self.store.check(["reason"]):
            return None
        return str(self.store.get("reason").decode())

    def wrap(self, model: nn.Module) -> nn.Module:
        """`model` with gradients averaged over ranks as they are computed."""
        if self.count == 1:
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        # Every rank built the same model from the same seed: nothing to broadcast.
        return DistributedDataParallel(
            model, device_ids=devices, init_sync=False, forward_sync_buffers=False
        )

    def without_averaging(self, model: nn.Module) -> AbstractContextManager[None]:
        """Gradients of a micro-batch that isn't the step's last stay on their rank."""
        if isinstance(model, DistributedDataParallel):
            return model.no_sync()
        return nullcontext()

    def average(self, parameters: Iterable[nn.Parameter]) -> None:
        """The mean over ranks of the gradients, in place: what `wrap` does while they come."""
        if self.count == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.count
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def gather(self, value: Any) -> list[Any]:
        """Every rank's `value`, in order of rank."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def from_first(self, value: Any) -> Any:
        """Rank 0's `value`."""
        if self.count == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, device=self.device)
        return values[0]

    def sum(self, values: Tensor) -> Tensor:
        """The element-wise sum over ranks, in place."""
        if self.count > 1:
            dist.all_reduce(values)
        return values

    def maximum(self, values: Tensor) -> Tensor:
        """The element-wise maximum over ranks, in place."""
        if self.count > 1:
            dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values

    def synchronise(self) -> None:
        """Waits for the device, so that a clock read next tells the truth."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


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
    """Joins the process group that rank 0 listens for at `host`:`port`; leaves it at the end.
    Rank 0 brings its `listener` there."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        _compute_alike()
    if count == 1:
        yield Ranks(device=device)
        return
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host,
        port,
        count,
        is_master=rank == 0,
        timeout=JOIN_TIMEOUT,
        master_listen_fd=None if listener is None else listener.detach(),
    )
    if (interface := _interface_to(host)) is not None:
        os.environ.update(dict.fromkeys(INTERFACES, interface))
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=count)
    try:
        yield Ranks(rank=rank, count=count, device=device, store=store)
    finally:
        dist.destroy_process_group()


@contextmanager
def one_thread() -> Iterator[None]:
    """Within, torch computes on one core: two examples aren't worth waking others for."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def listen_at(host: str) -> tuple[socket.socket, int]:
    """A socket bound to `host`, an address of this machine, and its port. Left to itself, torch
    would listen on every interface."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.bind((host, 0))
    return listener, int(listener.getsockname()[1])


def _interface_to(host: str) -> str | None:
    """The network interface by which this machine reaches `host`. Left to themselves, gloo takes
    that which the machine's name leads to, and NCCL its first. None where Linux doesn't say."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((host, 1))  # sends nothing
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
                if answer[20:24] == own:
                    return name
    return None


@contextmanager
def launch_ranks(
    count: int, follow: Callable[..., None], *arguments: Any
) -> Iterator[tuple[Ranks, list[int]]]:
    """Makes this process rank 0 of `count` on this machine. The others are started here and run
    `follow(ranks, *arguments)`. Gives the ranks and the process ids in their order."""
    host = "127.0.0.1"
    listener, port = listen_at(host) if count > 1 else (None, 0)
    devices = _local_devices(count)
    context = multiprocessing.get_context("spawn")
    others = [
        context.Process(
            target=_join_and_follow,
            args=(rank, count, host, port, devices[rank], follow, arguments),
        )
        for rank in range(1, count)
    ]
    for process in others:
        process.start()
    try:
        with open_ranks(
            rank=0, count=count, host=host, port=port, device=devices[0], listener=listener
        ) as ranks:
            yield ranks, [os.getpid(), *(process.pid or 0 for process in others)]
    finally:
        # They end by themselves with the work; an error or an interrupt here ends them too. They
        # are no daemons, since those may not have worker processes for their data.
        for process in others:
            process.join(timeout=5)
            process.kill()


def _join_and_follow(
    rank: int,
    count: int,
    host: str,
    port: int,
    device: torch.device,
    follow: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    # An interrupt is for the first rank, which then ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open_ranks(rank=rank, count=count, host=host, port=port, device=device) as ranks:
        follow(ranks, *arguments)


def _compute_alike() -> None:
    """Has CUDA compute the same bits every time, in float32 where float32 is said."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    # Where an operation has no such kernel there is a warning instead of an error: better than no
    # training at all.
    torch.use_deterministic_algorithms(True, warn_only=True)


def _local_devices(count: int) -> list[torch.device]:
    """A GPU of its own for each rank, or the CPU for all."""
    if torch.cuda.device_count() >= count:
        return [torch.device("cuda", rank) for rank in range(count)]
    return [torch.device("cpu")] * count
