"""All of Ray's private parts that are used here, each with the reason why nothing public does.

They change without notice. So pyproject.toml allows only the minor version they were tried with,
and `tests/test_ray_internals.py` fails where one is gone or Ray calls it no longer.
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
"""What `ray.init` returns: where the dashboard is."""

is_token_auth_enabled = authentication_utils.is_token_auth_enabled
"""Whether Ray asks for a token. It reads the setting once, when it is imported."""

ensure_token = authentication_token_setup.ensure_token_if_auth_enabled
"""Makes the token's file. Ray does so when it starts, with a mode that lets everybody read it."""

find_control_plane = services.canonicalize_bootstrap_address
"""HOST:PORT that an address such as `auto` means. `ray.init` tries for a quarter of an hour."""

IdleActors = object_cache._ObjectCache
"""Actors of Tune's that have no trial: ours stay longer."""


@contextmanager
def overridden(owner: Any, **attributes: Any) -> Iterator[None]:
    """Within, a module or class of Ray's has these attributes, where it has no option."""
    before = {name: getattr(owner, name) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def token() -> str:
    """The token that Ray would use; raises `AuthenticationError` if there is none."""
    loader = _raylet.AuthenticationTokenLoader  # type: ignore[attr-defined]
    return str(loader.instance().get_raw_token())


def knock(channel: Any, *, seconds: float, metadata: Sequence[tuple[str, str]]) -> None:
    """Asks a control plane whether it is alive, on a connection of grpc's; raises its `RpcError`.
    Ray itself only tells who is refused from who is not heard after it has joined."""
    stub = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
    request = gcs_service_pb2.CheckAliveRequest()  # type: ignore[attr-defined]
    stub.CheckAlive(request, timeout=seconds, metadata=metadata)


def no_output_of_workers() -> None:
    """Ray tells of workers that died on standard output, which may be our JSON."""
    worker._worker_logs_enabled = False


@contextmanager
def starting_with(popen: type[Any]) -> Iterator[None]:
    """Within, Ray starts its processes with a class of ours, leaves our handlers of signals alone,
    and stays with 127.0.0.1: it would look for an address that others can reach."""
    with (
        overridden(services, ConsolePopen=popen, resolve_ip_for_localhost=lambda host: host),
        overridden(utils, set_sigterm_handler=lambda handler: None),
    ):
        yield


ConsolePopen = services.ConsolePopen
"""With what Ray starts its processes."""


def own_processes() -> Mapping[str, Sequence[Any]]:
    """Ray's name of a process -> those of the node that was started here. Ray itself does not
    notice their end, or ends this process."""
    node: Any = worker._global_node
    found: Mapping[str, Sequence[Any]] = node.all_processes
    return found


@contextmanager
def failing_as(
    failure: Callable[[str, Exception], Exception], keep: Callable[[Any, Exception | None], None]
) -> Iterator[None]:
    """Within, an error that ends an actor of Tune's is what `failure` makes of the actor's id and
    the error, and a trial's error is given to `keep`. Tune ends the whole experiment for errors
    that it does not know, and writes the others to files, which a full disk makes fail."""
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
    """Whether Tune has started an actor for a trial, which is up but has not begun with it."""
    inner = controller._tune_controller
    actor = inner._trial_to_actor.get(trial)
    return actor is not None and bool(inner._actor_manager.is_actor_started(actor))


def wandb_actor() -> Any:
    """The class whose process tells wandb of a trial: it ends before all is written."""
    from ray.air.integrations import wandb

    return wandb._WandbLoggingActor


@contextmanager
def leaner_tune(idle_actors: type[Any]) -> Iterator[None]:
    """Within, Tune imports no tracker only to count them (which takes two seconds), hands no
    credentials on by way of Ray's logs (workers here have them from the environment, those of
    other machines have their own), and keeps its idle actors as a class of ours has it."""
    handed_on = {n for n in class_cache.ENV_VARS_TO_PROPAGATE if not n.startswith("AWS_")}
    with (
        overridden(usage, tag_callbacks=lambda callbacks: False),
        overridden(class_cache, ENV_VARS_TO_PROPAGATE=handed_on),
        overridden(tune_controller, _ObjectCache=idle_actors),
    ):
        yield
