"""Joins a Ray cluster or starts one on this machine, and sends Ray's output to the run's log."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grpc
import ray
from ray.exceptions import AuthenticationError

from orchestrator.cluster import ray_internals
from orchestrator.cluster.embedded import embedded
from orchestrator.cluster.slurm import SLURM, await_nodes, on_nodes
from orchestrator.planning.machines import ON_DEMAND, Cluster, Machine
from orchestrator.records import BadInput
from orchestrator.sweeping.log import logging_to

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 10
"""Seconds that a cluster may take to answer before it counts as unreachable."""


def end_at_once(reason: str) -> None:
    """Ends this process with an error, because without Ray its main thread may wait for ever."""
    print(f"error: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


@contextmanager
def connect(
    address: str | None,
    log: Path,
    died: Callable[[str], None] = end_at_once,
    say: Callable[[str], None] = logger.info,
) -> Iterator[Cluster]:
    """Joins the cluster at `address` (or RAY_ADDRESS); without an address, starts one on this
    machine, and at the address `slurm` on the nodes of a Slurm job. If a cluster that was started
    here can't go on, calls `died` with the reason on another thread.

    The output of Ray and Tune goes to the file `log`, not to the terminal.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    on_termination = signal.getsignal(signal.SIGTERM)

    def heed_termination() -> None:
        if on_termination is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_termination)

    with (
        ExitStack() as at_the_end,
        logging_to(log),
        on_nodes(died) if address == SLURM
        else _joined(address) if address
        else embedded(died) as context,
    ):  # fmt: skip
        # Ray's C++ core aborts at SIGTERM, and when it is shut down, it leaves the default: death.
        heed_termination()
        at_the_end.callback(heed_termination)
        if address == SLURM:
            await_nodes(say)
        ray_internals.no_output_of_workers()
        cluster = Cluster(
            machines=tuple(
                Machine(
                    name=node["NodeManagerHostname"],
                    cpus=int(node["Resources"].get("CPU", 0)),
                    gpus=int(node["Resources"].get("GPU", 0)),
                )
                for node in ray.nodes()
                if node["Alive"]
            ),
            gpus_on_demand=int(ray.cluster_resources().get(ON_DEMAND, 0)),
            dashboard=context.dashboard_url or None,
            embedded=not address,
        )
        logger.info("connected to %r", cluster)
        yield cluster


@contextmanager
def _joined(address: str) -> Iterator[ray_internals.Context]:
    control_plane = _find(address)
    # Without this check, Ray would try for a quarter of an hour and print messages of its C++ core.
    try:
        is_open = _knock(control_plane, with_token=False)
    except ConnectionError:
        raise BadInput(
            f"No Ray cluster answers at {address}. Give HOST:PORT of its head, and check that it "
            f"runs and can be reached from here."
        ) from None
    if is_open:
        if ray_internals.is_token_auth_enabled():
            raise BadInput(
                f"The Ray cluster at {address} asks for no token, so anyone who reaches it can "
                f"run code there. If that is intended, set RAY_AUTH_MODE=disabled to join it."
            )
    elif not (ray_internals.is_token_auth_enabled() and _knock(control_plane, with_token=True)):
        raise BadInput(
            f"The Ray cluster at {address} refused the token of this machine, or this machine has "
            f"none. On its head, `ray get-auth-token` prints the token: put it into RAY_AUTH_TOKEN "
            f"or ~/.ray/auth_token, and leave RAY_AUTH_MODE unset."
        )
    try:
        try:
            joined = ray.init(address=control_plane, log_to_driver=False, configure_logging=False)
        except RuntimeError as error:
            _, mismatch, versions = str(error).partition("Version mismatch: ")
            if not mismatch:
                raise
            raise BadInput(
                f"The cluster at {address} can be joined only with its own versions of Ray and "
                f"Python, to the last digit. Install them here, or run the command on its head.\n"
                f"{versions}"
            ) from None
        yield joined
    finally:
        ray.shutdown()


def _find(address: str) -> str:
    """HOST:PORT of the cluster's control plane; `auto` means the cluster of this machine."""
    with suppress(ValueError, OSError):
        if "://" not in address and (found := ray_internals.find_control_plane(address)):
            return str(found)
    raise BadInput(
        f"No Ray cluster can be found at {address!r}. Give HOST:PORT of its head (the default "
        f"port is 6379), or `auto` on one of its machines."
    )


def _knock(address: str, *, with_token: bool) -> bool:
    """Whether the control plane at `address` accepts us. Raises `ConnectionError` if it does not
    answer."""
    metadata = []
    if with_token:
        try:
            metadata = [("authorization", f"Bearer {ray_internals.token()}")]
        except AuthenticationError:
            return False
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            ray_internals.knock(channel, seconds=ANSWER_SECONDS, metadata=metadata)
        except grpc.RpcError as error:
            if error.code() in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}:
                return False
            raise ConnectionError(address) from None
    return True
