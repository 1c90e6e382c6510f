"""Joining a Ray cluster, or starting one on this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import ray
from ray._private import worker as ray_worker
from ray._private.authentication.authentication_utils import is_token_auth_enabled
from ray._private.services import canonicalize_bootstrap_address
from ray._private.worker import BaseContext
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc
from ray.exceptions import AuthenticationError

from orchestrator.cluster.machines import Cluster, Machine
from orchestrator.records import BadInput

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 256 * 2**20
"""Enough for the few small messages that a sweep on one machine passes around."""

ON_DEMAND = "gpus_on_demand"
"""The resource by which the head of an autoscaled cluster says how many GPUs can be had: nothing
in Ray tells a driver of machines that are not there yet."""

ANSWER_SECONDS = 10
"""How long a cluster may take to answer before it is called unreachable."""


@contextmanager
def connect(address: str | None, log: Path) -> Iterator[Cluster]:
    """Joins the cluster at `address` (or RAY_ADDRESS), else starts one on this machine.

    What Ray and Tune have to say goes to the file `log`, not to the terminal.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    with _logging_to(log):
        context = _join(address) if address else _start()
        try:
            # Ray tells of workers that died on standard output, which may be our JSON.
            ray_worker._worker_logs_enabled = False
            cluster = Cluster(
                machines=_machines(),
                gpus_on_demand=int(ray.cluster_resources().get(ON_DEMAND, 0)),
                dashboard=context.dashboard_url or None,
                embedded=not address,
            )
            logger.info("connected to %r", cluster)
            yield cluster
        finally:
            ray.shutdown()


def _machines() -> tuple[Machine, ...]:
    """Those that are there now."""
    return tuple(
        Machine(
            name=node["NodeManagerHostname"],
            cpus=int(node["Resources"].get("CPU", 0)),
            gpus=int(node["Resources"].get("GPU", 0)),
        )
        for node in ray.nodes()
        if node["Alive"]
    )


def _join(address: str) -> BaseContext:
    place = _find(address)
    # Left to itself, Ray tries for a quarter of an hour, in the words of its C++ core.
    try:
        is_open = _knock(place, with_token=False)
    except ConnectionError:
        raise BadInput(
            f"No Ray cluster answers at {address}. Write HOST:PORT of its head, and check that it "
            f"runs and can be reached from here."
        ) from None
    if is_open:
        if is_token_auth_enabled():
            raise BadInput(
                f"The Ray cluster at {address} is open to everyone. If that is meant to be so, "
                f"set RAY_AUTH_MODE=disabled to join it."
            )
    elif not (is_token_auth_enabled() and _knock(place, with_token=True)):
        raise BadInput(
            f"The Ray cluster at {address} asks for a token, which is not the one found here (or "
            f"none was found). On its head, `ray get-auth-token` prints it: put it into "
            f"RAY_AUTH_TOKEN or ~/.ray/auth_token, and leave RAY_AUTH_MODE unset."
        )
    return ray.init(address=place, log_to_driver=False, configure_logging=False)


def _find(address: str) -> str:
    """HOST:PORT of the cluster's control plane; `auto` is the one this machine belongs to."""
    found = None
    if "://" not in address:
        with suppress(ConnectionError, ValueError, OSError):
            found = canonicalize_bootstrap_address(address)
    if found is None:
        raise BadInput(
            f"No Ray cluster can be found at {address!r}. Write HOST:PORT of its head (6379 unless "
            f"chosen otherwise), or `auto` on one of its machines."
        )
    return str(found)


def _knock(place: str, *, with_token: bool) -> bool:
    """Whether the control plane at `place` lets us in; `ConnectionError` if nobody answers."""
    metadata = []
    if with_token:
        try:
            token = AuthenticationTokenLoader.instance().get_raw_token()
        except AuthenticationError:
            return False
        metadata = [("authorization", f"Bearer {token}")]
    with grpc.insecure_channel(place, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        try:
            stub.CheckAlive(
                gcs_service_pb2.CheckAliveRequest(),  # type: ignore[attr-defined]
                timeout=ANSWER_SECONDS,
                metadata=metadata,
            )
        except grpc.RpcError as error:
            if error.code() in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}:
                return False
            raise ConnectionError(place) from None
    return True


def _start() -> BaseContext:
    if not is_token_auth_enabled():
        raise BadInput(
            "A Ray started here listens on every network interface, so it is started with token "
            "authentication only, which is off: RAY_AUTH_MODE says so, or ray was imported before "
            "orchestrator.cluster. Unset the one, or import the other first."
        )
    return ray.init(
        address="local",
        num_cpus=len(os.sched_getaffinity(0)),
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=True,
        dashboard_host="127.0.0.1",
        log_to_driver=False,
        configure_logging=False,
    )


@contextmanager
def _logging_to(log: Path) -> Iterator[None]:
    """Ray gives several of its loggers terminal handlers of their own: all of them are swapped."""
    handler = logging.FileHandler(log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in ("ray", "ray.tune", "ray.train", "orchestrator")]
    before = [(each, each.handlers, each.level, each.propagate) for each in loggers]
    for each in loggers:
        each.handlers, each.propagate = [handler], False
        each.setLevel(logging.INFO)
    # At the end Tune looks for files of the loggers that we turn off, one warning per trial.
    logging.getLogger("ray.tune.analysis.experiment_analysis").setLevel(logging.ERROR)
    try:
        yield
    finally:
        for each, handlers, level, propagate in before:
            each.handlers, each.propagate = handlers, propagate
            each.setLevel(level)
        handler.close()
