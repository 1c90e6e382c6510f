"""Joining a Ray cluster, or starting one on this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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

from orchestrator.records import BadInput
from orchestrator.sweep import Resources

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 256 * 2**20
"""Enough for the few small messages that a sweep on one machine passes around."""

ON_DEMAND = "gpus_on_demand"
"""The resource by which the head of an autoscaled cluster says how many GPUs can be had: nothing
in Ray tells a driver of machines that are not there yet."""

ANSWER_SECONDS = 10
"""How long a cluster may take to answer before it is called unreachable."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster this process is connected to."""

    cpus: int
    gpus: int
    """There now, or to be had on demand."""
    dashboard: str | None
    """Its address, if there is a dashboard."""
    embedded: bool
    """Started by this process and ended with it."""


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
            resources = ray.cluster_resources()
            cluster = Cluster(
                cpus=int(resources.get("CPU", 0)),
                gpus=int(max(resources.get("GPU", 0), resources.get(ON_DEMAND, 0))),
                dashboard=context.dashboard_url or None,
                embedded=not address,
            )
            logger.info("connected to %s", cluster)
            yield cluster
        finally:
            ray.shutdown()


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


def fit_resources(resources: Resources, cluster: Cluster) -> Resources:
    """`resources` with what was left to the cluster decided; refuses what it can't hold."""
    gpus = resources.gpus_per_device
    if gpus is None:
        gpus = 1 if cluster.gpus else 0
    if gpus and not cluster.gpus:
        raise BadInput(
            f"resources.gpus_per_device: {gpus:g} was asked for, but the cluster has no GPU. "
            f"Leave it out to train on whatever there is, or write 0 for CPUs."
        )
    if not gpus and resources.cpus_per_rank > cluster.cpus:
        raise BadInput(
            f"resources.cpus_per_rank: {resources.cpus_per_rank} were asked for, but the cluster "
            f"has {cluster.cpus} CPUs."
        )
    fitted = resources.model_copy(update={"gpus_per_device": gpus})
    devices = places(fitted, cluster)
    if resources.examples_per_device is not None and resources.max_devices > devices:
        raise BadInput(
            f"resources.max_devices: {resources.max_devices} were asked for, but the cluster has "
            f"{'GPUs' if gpus else 'CPUs'} for {devices}."
        )
    logger.info(
        "each trial takes up to %d ranks, each with %d CPU and %g GPU",
        resources.max_devices if resources.examples_per_device else 1,
        resources.cpus_per_rank,
        gpus,
    )
    return fitted


def places_for(resources: Resources, cluster: Cluster) -> int:
    """How many ranks a sweep that asks for these has at once; refuses what the cluster lacks."""
    return places(fit_resources(resources, cluster), cluster)


def places(resources: Resources, cluster: Cluster) -> int:
    """How many ranks can train at once, of whatever trials."""
    if resources.gpus_per_device:
        return int(cluster.gpus / resources.gpus_per_device)
    return cluster.cpus // resources.cpus_per_rank
