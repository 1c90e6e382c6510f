"""All private parts of Ray that this project uses, each with the reason why no public part does.

They may change without notice. So pyproject.toml allows only the minor version with which they were
tried, and `tests/test_ray_internals.py` fails if one is missing or Ray no longer calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import ray
from ray import _raylet
from ray._private import node, services, utils, worker
from ray._private.authentication import authentication_token_setup, authentication_utils
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc
from ray.tune.execution import tune_controller
from ray.tune.utils import object_cache

Context = worker.BaseContext
"""The type that `ray.init` returns, which has the address of the dashboard."""

is_token_auth_enabled = authentication_utils.is_token_auth_enabled
"""Whether Ray asks for a token. It reads the setting once, when it is imported."""

ensure_token = authentication_token_setup.ensure_token_if_auth_enabled
"""Creates the token's file. Ray does so when it starts, with a mode that lets all users read it."""

find_control_plane = services.canonicalize_bootstrap_address
"""Returns the HOST:PORT of an address such as `auto`. `ray.init` would try for a quarter of an
hour."""

TuneController = tune_controller.TuneController
"""Tune's event loop. `Tuner.fit` runs it to its end. A sweep's own loop makes its steps one by one
instead, and the same loop drives executors without Ray."""

IdleActors = object_cache._ObjectCache
"""Tune's cache of actors that have no trial. Ours keeps them longer."""


ENDING_SECONDS = 5


@contextmanager
def overridden(owner: Any, **attributes: Any) -> Iterator[None]:
    """Gives a module or class of Ray these attributes during the `with` block, where Ray has no
    option for them."""
    before = {name: getattr(owner, name) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def token() -> str:
    """The token that Ray would use. Raises `AuthenticationError` if there is none."""
    loader = _raylet.AuthenticationTokenLoader  # type: ignore[attr-defined]
    return str(loader.instance().get_raw_token())


def knock(channel: Any, *, seconds: float, metadata: Sequence[tuple[str, str]]) -> None:
    """Asks a control plane over a grpc channel whether it is alive. Raises grpc's `RpcError`. Ray
    itself tells a refused connection from an unanswered one only after it has joined."""
    stub = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
    request = gcs_service_pb2.CheckAliveRequest()  # type: ignore[attr-defined]
    stub.CheckAlive(request, timeout=seconds, metadata=metadata)


def no_output_of_workers() -> None:
    """Turns off Ray's messages about dead workers, which go to standard output and would mix with
    our JSON."""
    worker._worker_logs_enabled = False


@contextmanager
def starting_with(popen: Callable[..., Any], *, dashboard: bool) -> Iterator[None]:
    """During the `with` block, Ray starts its processes with `popen`, leaves our signal
    handlers in place, and uses 127.0.0.1 instead of an address that other machines can reach.
    Processes that nobody needs here aren't started: each takes half a second."""
    of_dashboard = [] if dashboard else ["start_api_server", "start_monitor"]
    unneeded = ["start_log_monitor", *of_dashboard]
    with (
        overridden(node.Node, **dict.fromkeys(unneeded, _start_nothing)),
        overridden(services, ConsolePopen=popen, resolve_ip_for_localhost=lambda host: host),
        overridden(utils, set_sigterm_handler=lambda handler: None),
    ):
        yield


def _start_nothing(node: Any, **options: Any) -> None:
    """Stands for the start of a process: the one that copies the logs of workers to the terminal,
    the dashboard's, of which Ray starts a part where it is turned off, or the autoscaler's, which
    has nothing to scale here but tells the dashboard what is in use."""


ConsolePopen = services.ConsolePopen
"""The class with which Ray starts its processes."""


def own_processes() -> Mapping[str, Sequence[Any]]:
    """Ray's name for a kind of process -> the processes of the node that was started here. Ray
    itself does not notice their end, or ends this process because of it."""
    node: Any = worker._global_node
    found: Mapping[str, Sequence[Any]] = node.all_processes
    return found


def actor_is_coming(controller: Any, trial: Any) -> bool:
    """Whether Tune has started an actor for a trial that has not begun with the trial yet."""
    actor = controller._trial_to_actor.get(trial)
    return actor is not None and bool(controller._actor_manager.is_actor_started(actor))


def replace_parts(
    controller: Any, *, idle_actors: IdleActors, failure: Callable[[Exception], Exception]
) -> None:
    """Makes Tune keep its idle actors in `idle_actors`. `failure` replaces the error of an actor.
    An actor that is no longer needed may take a few seconds to end, not ten minutes."""
    manager = controller._actor_manager
    task_failed = manager._actor_task_failed

    def failed(tracked_actor_task: Any, exception: Exception) -> None:
        task_failed(tracked_actor_task, failure(exception))

    manager._actor_task_failed = failed
    controller._actor_cache = idle_actors
    controller._actor_cleanup_timeout = ENDING_SECONDS
    # Tune's cache of actor classes would give each actor an environment.
    controller._class_cache = SimpleNamespace(get=cache(ray.remote))
