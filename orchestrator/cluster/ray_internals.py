"""All private parts of Ray that this project uses, each with the reason why no public part does.

They may change without notice. So pyproject.toml allows only the minor version with which they were
tried, and `tests/test_ray_internals.py` fails if one is missing or Ray no longer calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ray import _raylet
from ray._private import services, utils, worker
from ray._private.authentication import authentication_token_setup, authentication_utils
from ray.air._internal import usage
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc
from ray.tune.execution import class_cache, tune_controller
from ray.tune.experiment import Trial
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

IdleActors = object_cache._ObjectCache
"""Tune's cache of actors that have no trial. Ours keeps them longer."""


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
def starting_with(popen: type[Any]) -> Iterator[None]:
    """During the `with` block, Ray starts its processes with the class `popen`, leaves our signal
    handlers in place, and uses 127.0.0.1 instead of an address that other machines can reach."""
    with (
        overridden(services, ConsolePopen=popen, resolve_ip_for_localhost=lambda host: host),
        overridden(utils, set_sigterm_handler=lambda handler: None),
    ):
        yield


ConsolePopen = services.ConsolePopen
"""The class with which Ray starts its processes."""


def own_processes() -> Mapping[str, Sequence[Any]]:
    """Ray's name for a kind of process -> the processes of the node that was started here. Ray
    itself does not notice their end, or ends this process because of it."""
    node: Any = worker._global_node
    found: Mapping[str, Sequence[Any]] = node.all_processes
    return found


@contextmanager
def failing_as(
    failure: Callable[[str, Exception], Exception], keep: Callable[[Any, Exception | None], None]
) -> Iterator[None]:
    """During the `with` block, `failure` replaces an error that ends one of Tune's actors, given
    the actor's id and the error, and `keep` receives each trial's error. Tune would end the whole
    experiment for errors that it does not know. It writes other errors to files, which fails on a
    full disk."""
    task_failed = RayActorManager._actor_task_failed

    def failed(manager: Any, tracked_actor_task: Any, exception: Exception) -> None:
        actor = tracked_actor_task._tracked_actor
        gang, _ = manager._live_actors_to_ray_actors_resources[actor]
        task_failed(manager, tracked_actor_task, failure(gang._actor_id.hex(), exception))

    with (
        overridden(RayActorManager, _actor_task_failed=failed),
        overridden(Trial, handle_error=keep),
    ):
        yield


def actor_is_coming(controller: Any, trial: Any) -> bool:
    """Whether Tune has started an actor for a trial that has not begun with the trial yet."""
    inner = controller._tune_controller
    actor = inner._trial_to_actor.get(trial)
    return actor is not None and bool(inner._actor_manager.is_actor_started(actor))


@contextmanager
def leaner_tune(idle_actors: type[Any]) -> Iterator[None]:
    """Changes three things in Tune during the `with` block. It does not import all trackers only to
    count them, which takes two seconds. It does not pass on credentials through Ray's logs: workers
    on this machine get them from the environment, and other machines have their own. It keeps its
    idle actors in the class `idle_actors`."""
    handed_on = {n for n in class_cache.ENV_VARS_TO_PROPAGATE if not n.startswith("AWS_")}
    with (
        overridden(usage, tag_callbacks=lambda callbacks: False),
        overridden(class_cache, ENV_VARS_TO_PROPAGATE=handed_on),
        overridden(tune_controller, _ObjectCache=idle_actors),
    ):
        yield
