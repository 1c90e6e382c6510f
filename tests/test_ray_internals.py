"""Each of Ray's private parts that is used here is there, and Ray still goes through it. Where a
new version does not, the name of the failing test says which one."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import ray
from conftest import refused
from ray._private import node, services, utils, worker
from ray.air.execution._internal import actor_manager
from ray.tune.execution import tune_controller

from orchestrator.cluster import connect, ray_internals
from orchestrator.cluster.embedded import embedded
from orchestrator.records import SweepFailed

CALLED: dict[str, tuple[Any, str]] = {
    "processes are started with the class that is put in place": (
        services.start_ray_process, r"ConsolePopen\("),
    "the address is resolved by the function that is put in place": (
        services, r"= resolve_ip_for_localhost\("),
    "handlers of SIGTERM are put in place by the function that is replaced": (
        worker, r"utils\.set_sigterm_handler\("),
    "workers' output follows the switch": (worker, r"\b_worker_logs_enabled\b.*:"),
    "the autoscaler's monitor is started by the method that is replaced": (
        node.Node.start_head_processes, r"self\.start_monitor\(\)"),
    "the dashboard is started by the method that is replaced": (
        node.Node.start_head_processes, r"self\.start_api_server\("),
    "the monitor of logs is started by the method that is replaced": (
        node.Node.start_ray_processes, r"self\.start_log_monitor\(\)"),
    "a node has all its processes": (node.Node, r"self\.all_processes\["),
    "an actor's error goes to the method that is replaced": (
        actor_manager.RayActorManager, r"self\._actor_task_failed\("),
    "actors that live are found by their tracked ones": (
        actor_manager.RayActorManager, r"self\._live_actors_to_ray_actors_resources\["),
    "a trial's error goes to the method that is replaced": (
        tune_controller, r"trial\.handle_error\("),
    "idle actors are kept by the class that is put in place": (
        tune_controller, r"self\._actor_cache = _ObjectCache\(may_keep_one=True\)"),
    "the controller asks for actors that are up": (
        tune_controller, r"self\._actor_manager\.is_actor_started\("),
    "the controller knows the actors of trials": (tune_controller, r"self\._trial_to_actor\["),
    "a step asks the searcher by the method that is overridden": (
        tune_controller.TuneController.step, r"self\._maybe_update_trial_queue\(\)"),
    "a step takes a snapshot by the method that is overridden": (
        tune_controller.TuneController.step, r"self\.checkpoint\(\)"),
    "actors are made of the class that is put in place": (
        tune_controller, r"self\._class_cache\.get\("),
    "actors that do not end are killed after the time that is set": (
        tune_controller, r"> self\._actor_cleanup_timeout"),
    "a trial is asked for its class": (tune_controller, r"trial\.get_trainable_cls\("),
    "a trial is asked to make its folder": (tune_controller, r"trial\.init_local_path\("),
}  # fmt: skip


@pytest.mark.parametrize("how", CALLED)
def test_ray_goes_through_it(how: str) -> None:
    where, text = CALLED[how]
    assert re.search(text, inspect.getsource(where))


def test_nothing_else_of_ray_that_is_private_is_used() -> None:
    package = Path(ray_internals.__file__).parent.parent
    private = re.compile(r"^\s*(from|import) ray\S*(\._|_pb2| import _| import .*_pb2)", re.M)
    using = {path.name for path in package.rglob("*.py") if private.search(path.read_text())}
    assert using == {"ray_internals.py"}


@pytest.mark.parametrize("told", ["the dashboard did not come up\nand much more", "\nits log"])
def test_a_ray_that_does_not_start_is_one_sentence(
    told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: object) -> None:
        raise RuntimeError(told)

    monkeypatch.setattr(ray, "init", init)
    refused = pytest.raises(SweepFailed, match=r"^[^\n]* dashboard did not come up[^\n]*$")
    with refused, embedded(print):
        raise AssertionError


def test_another_version_of_ray_or_python_is_refused_in_our_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {"ray_version": ray.__version__, "python_version": "3.11.0"}
    monkeypatch.setattr(connect, "_find", str)
    monkeypatch.setattr(connect, "_knock", lambda *_, with_token: with_token)
    monkeypatch.setattr(ray, "init", lambda **_: utils.check_version_info(theirs, "here"))
    with (
        refused("bad-input", "head:6379", "on its head", "Python: 3.11.0"),
        connect.connect("head:6379", tmp_path / "log.txt"),
    ):
        pass
