"""Ray on the nodes of a Slurm job. `srun` starts the same command on each node: that of the first
starts Ray and drives the sweep, those of the others lend their nodes to it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import ray

from orchestrator.cluster.embedded import (
    LOOPBACK,
    OBJECT_STORE_BYTES,
    embedded,
    private_folder,
    undisturbed,
)
from orchestrator.cluster.ray_death import death_before
from orchestrator.cluster.ray_internals import Context
from orchestrator.files.cores import cores
from orchestrator.records import BadInput

logger = logging.getLogger(__name__)

SLURM = "slurm"
"""The address that means the nodes of the Slurm job that this process is part of."""

FIRST_PORT, PORTS = 10_000, 20_000
"""The ports from which each step of a job gets two of its own. Those of the operating system, for
connections that go out, begin above."""

JOIN_SECONDS = 180.0
"""Seconds that nodes may take to find each other: some load Python slowly from shared storage."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """This process's node among those of its job step."""

    number: int
    count: int
    first: str
    """Address of the first node."""
    port: int
    """Port of Ray there. The next one is the lifeline's."""

    @classmethod
    def here(cls) -> Node:
        """Reads what `srun` tells the processes that it starts."""
        try:
            names = ("JOB_ID", "STEP_ID", "PROCID", "STEP_NUM_TASKS", "STEP_NUM_NODES")
            job, step, number, tasks, nodes = (int(os.environ[f"SLURM_{name}"]) for name in names)
            first = os.environ["SLURM_LAUNCH_NODE_IPADDR"]
        except (KeyError, ValueError):
            raise BadInput(
                "--address slurm is for a command that `srun` starts on the nodes of a Slurm job. "
                "`orchestrate init --slurm` writes a script that does so.",
                code="no-slurm",
            ) from None
        if tasks != nodes:
            raise BadInput(
                f"srun has started {tasks} processes on {nodes} nodes, but each node is lent as a "
                f"whole: give srun --ntasks-per-node=1.",
                code="no-slurm",
            )
        # Jobs that run at the same time have numbers near each other.
        port = FIRST_PORT + 2 * ((job + 7919 * step) % (PORTS // 2))
        return cls(number=number, count=nodes, first=first, port=port)

    @property
    def cores(self) -> int:
        """Those that Slurm has given to the job here, which it may not enforce."""
        given = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE")
        return min(cores(), int(given)) if given and given.isdigit() else cores()


@contextmanager
def on_nodes(died: Callable[[str], None]) -> Iterator[Context]:
    """Starts Ray on the first node for the `with` block, where the others can join."""
    node = Node.here()
    if node.count > 1:
        os.environ["RAY_GCS_SERVER_PORT"] = str(node.port)
    with embedded(died, host=node.first if node.count > 1 else LOOPBACK, cpus=node.cores) as found:
        yield found


def await_nodes(say: Callable[[str], None]) -> None:
    """Waits until the other nodes have joined."""
    count, deadline = Node.here().count, time.monotonic() + JOIN_SECONDS
    while (there := sum(bool(node["Alive"]) for node in ray.nodes())) < count:
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    say(f"{there} of the {count} nodes of this Slurm job train.")


def take_part() -> bool:
    """Whether this process is to drive the sweep. If not, it has lent its node until the end."""
    node = Node.here()
    if node.number > 0:
        _lend(node)
        return False
    if node.count > 1:
        _hold_lifeline(node)
    return True


def _hold_lifeline(node: Node) -> None:
    """Opens a port to which the other nodes connect, so that they see this process end, in whatever
    way, and waits for them: those that come later would look for it in vain. Nobody answers there.
    A process that takes the place of this one, after a death of Ray, inherits the sockets."""
    if death_before() is not None:
        return
    lifeline = socket.socket()
    kept = [lifeline]
    try:
        lifeline.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        lifeline.bind((node.first, node.port + 1))
        lifeline.listen(node.count)
        lifeline.settimeout(JOIN_SECONDS)
        with suppress(TimeoutError):
            while len(kept) < node.count:
                kept.append(lifeline.accept()[0])
    except OSError as error:
        raise BadInput(
            f"Port {node.port + 1} of {node.first} can't be used: {error.strerror}. The first "
            f"process of `srun` must run on the node where srun does, as it does in a script "
            f"for sbatch. If another program has the port, a new job gets another one.",
            code="no-slurm",
        ) from None
    for each in kept:
        os.set_inheritable(each.detach(), True)  # until this process ends


def _lend(node: Node) -> None:
    """Lends this node to the sweep of the first one until that has ended. Signals are left to the
    first node."""
    asked_to_end = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    for number in asked_to_end:
        signal.signal(number, lambda *_: None)  # ignored, they would be so in all that is started
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--block",
        f"--address={node.first}:{node.port}", f"--num-cpus={node.cores}",
        "--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
    ]  # fmt: skip
    with _reached(node) as lifeline, private_folder() as folder:
        lifeline.settimeout(1.0)
        while not _is_over(lifeline):
            if not _listens(node):  # the plan is made first
                continue
            log = folder / "log.txt"
            with log.open("wb") as output, undisturbed():
                started = subprocess.Popen(
                    [*command, f"--temp-dir={folder / 'r'}"],
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0,
                )  # fmt: skip
            while started.poll() is None and not _is_over(lifeline):
                pass
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            if started.wait() > 0:
                said = log.read_text(errors="replace").strip().splitlines()[-15:]
                print(socket.gethostname(), *said, sep="\n", file=sys.stderr, flush=True)
    # `srun` asks this process to end as soon as the first has. To die of that, while Python is
    # ending and has no functions of its own for signals, would hide the exit code of the first.
    for number in asked_to_end:
        signal.signal(number, signal.SIG_IGN)


def _reached(node: Node) -> socket.socket:
    """A connection to the process that drives the sweep, once it listens."""
    deadline = time.monotonic() + JOIN_SECONDS
    while True:
        try:
            return socket.create_connection((node.first, node.port + 1), timeout=5)
        except OSError as error:
            if time.monotonic() > deadline:
                raise BadInput(
                    f"{socket.gethostname()} can't reach {node.first}, the first node of the job, "
                    f"at port {node.port + 1}: {error}.",
                    code="unreachable",
                ) from None
            time.sleep(0.5)


def _is_over(lifeline: socket.socket) -> bool:
    """Waits a moment. Returns whether the process at the other end is gone."""
    try:
        return lifeline.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def _listens(node: Node) -> bool:
    """Whether Ray can be joined already."""
    with suppress(OSError), socket.create_connection((node.first, node.port), timeout=5):
        return True
    return False
