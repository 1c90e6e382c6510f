"""What an error of a trial is taken for."""

import pickle

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from orchestrator.cluster.failures import (
    ERROR_LINES,
    LINE_CHARACTERS,
    Raised,
    RankLost,
    failure_of,
    last_lines,
)


def task_error(cause: Exception) -> RayTaskError:
    return RayTaskError("step", f"Traceback\n{cause}", cause)


def node_died() -> ActorDiedError:
    error = ActorDiedError()
    error.error_msg = "The actor died because its node has died."
    return error


def test_what_code_raises_is_no_lost_machine() -> None:
    failure = failure_of(task_error(Raised("RuntimeError: the node died, node has died")))
    assert failure.text == "RuntimeError: the node died, node has died"
    assert not failure.died
    assert not failure.machine_lost


def test_a_process_that_died_may_have_lost_its_machine() -> None:
    assert failure_of(ActorDiedError()).died
    assert not failure_of(ActorDiedError()).machine_lost
    assert failure_of(node_died()).machine_lost
    raised_in_setup = ActorDiedError(task_error(ValueError("node has died")))
    assert not failure_of(raised_in_setup).died
    assert not failure_of(raised_in_setup).machine_lost


@pytest.mark.parametrize("machine_lost", [False, True])
def test_a_lost_rank_survives_the_way_to_the_driver(machine_lost: bool) -> None:
    error = pickle.loads(pickle.dumps(RankLost("it was killed", machine_lost=machine_lost)))
    failure = failure_of(task_error(error))
    assert failure.text == "a rank was lost: it was killed"
    assert failure.died
    assert failure.machine_lost == machine_lost


def test_long_errors_are_cut_and_can_be_stored() -> None:
    text = last_lines("\n".join([*map(str, range(100)), "x" * 10**7, "\ud800 at the end"]))
    assert text.endswith("\\ud800 at the end")
    assert text.startswith("82\n")
    assert len(text) < (ERROR_LINES + 1) * LINE_CHARACTERS
