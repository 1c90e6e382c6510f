"""What an error of a trial is taken for."""

import pickle
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import models
import pytest
from conftest import TINY, exhaust, make_trial, orchestrate, refused
from ray.exceptions import ActorDiedError, RayTaskError

from orchestrator.cluster import board
from orchestrator.cluster.failures import Failed, failure_of
from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Sweep
from orchestrator.sweeping.executor import ERROR_LINES, LINE_CHARACTERS, Failure, last_lines
from orchestrator.training import train_on_ranks


def task_error(cause: Exception) -> RayTaskError:
    return RayTaskError("step", f"Traceback\n{cause}", cause)


def node_died() -> ActorDiedError:
    error = ActorDiedError()
    error.error_msg = "The actor died because its node has died."
    return error


def test_a_process_that_died_may_have_lost_its_machine() -> None:
    assert failure_of(ActorDiedError()).died
    assert not failure_of(ActorDiedError()).machine_lost
    assert failure_of(node_died()).machine_lost
    raised_in_setup = ActorDiedError(task_error(ValueError("node has died")))
    assert not failure_of(raised_in_setup).died
    assert not failure_of(raised_in_setup).machine_lost


@pytest.mark.parametrize(("died", "lost"), [(False, False), (True, False), (True, True)])
def test_what_a_rank_tells_survives_the_way_to_the_driver(died: bool, lost: bool) -> None:
    """What code raises is no lost machine, whatever its words."""
    failure = Failure(text="the node died, node has died", died=died, machine_lost=lost)
    assert failure_of(task_error(pickle.loads(pickle.dumps(Failed(failure))))) == failure


def test_long_errors_are_cut_and_can_be_stored() -> None:
    text = last_lines("\n".join([*map(str, range(100)), "x" * 10**7, "\ud800 at the end"]))
    assert text.endswith("\\ud800 at the end")
    assert text.startswith("82\n")
    assert len(text) < (ERROR_LINES + 1) * LINE_CHARACTERS


@pytest.mark.parametrize(("passing", "ended"), [([3600, 5, 3600], False), ([5] * 9, True)])
def test_time_in_which_a_gang_was_stopped_is_no_silence(
    passing: list[int], ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks every 5 s, and steps may take 20."""
    now, times = 0.0, iter(passing)

    def sleep(seconds: float) -> None:
        nonlocal now
        assert seconds == 5
        now += next(times)  # StopIteration ends the watch
        if now > 3600:
            watchdog.pulse()

    monkeypatch.setattr(board, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    monkeypatch.setattr(board.ray, "get", Mock())
    monkeypatch.setattr(board.os, "_exit", Mock(side_effect=SystemExit))
    watchdog = board.Watchdog(Mock(), None)
    with watchdog.watching(1), pytest.raises(SystemExit if ended else StopIteration):
        watchdog._watch(20)


ON_RANK_1 = """
import torch.distributed as dist
from orchestrator.workloads.digits import DigitsMLP

class Flawed(DigitsMLP):
    def loss(self, model, batch):
        if dist.is_initialized() and dist.get_rank() == 1:
            raise ValueError("not divisible")
        return super().loss(model, batch)
"""


@pytest.mark.dear
def test_a_trial_by_hand_tells_what_another_rank_raised(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ON_RANK_1)
    ended = orchestrate(
        "trial", "mine.py:Flawed", "--optimizer", "sgd", "--batch-size", 64, "--ranks", 2,
        "--set", "learning_rate=0.1", cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "ValueError: not divisible" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("devices", [1, 2])
def test_a_parameter_without_gradient_is_found_before_ranks_wait_for_it(devices: int) -> None:
    changes = {
        "workloads": [models.name(models.Idle)], "batch_sizes": [64],
        "resources": {"examples_per_device": 32, "max_devices": devices},
    }  # fmt: skip
    sweep = Sweep.model_validate({**TINY, **changes})
    with refused("no-gradient", "Idle", "idle") if devices > 1 else nullcontext():
        plan(sweep)


@pytest.mark.dear
def test_ranks_do_not_average_gradients_of_different_parameters() -> None:
    """One of them has two examples, the other one."""
    trial = make_trial(models.name(models.Seldom), batch_size=3, budget_steps=4)
    with refused("no-gradient", "each rank"):
        exhaust(train_on_ranks(trial, 2))
