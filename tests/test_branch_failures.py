"""Branches that fail are told, and tried again from states that are there or are made again."""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_branching import described
from test_growth import command

from orchestrator.cli.sessions import tell
from orchestrator.planning.branch_file import load_branches
from orchestrator.planning.sweep import Sweep
from orchestrator.results import RunFiles
from orchestrator.sweeping import session
from orchestrator.sweeping.executor import Executor, Failure, Job, News, Pack
from orchestrator.sweeping.local import Local, in_this_process

pytestmark = pytest.mark.dear


def loaded(folder: Path) -> Sweep:
    one_rate = {"rules": ["linear"], "multiples": [1]}
    short = {"examples": 512, "at_most": 512}
    return load_branches(described(folder, learning_rate=one_rate, length=short))


class Failing(Local):
    """An executor whose processes fail at one batch size."""

    at: int

    def _train(self, pack: Pack) -> Generator[News, None, None]:
        if pack.study.batch_size != self.at:
            yield from super()._train(pack)
            return
        yield News(serial=pack.serial, started=True)
        begun = [proposal.trial.key for proposal in pack.proposals]
        failure = Failure(text="ValueError: too many", died=False, machine_lost=False)
        yield News(serial=pack.serial, begun=begun, failure=failure)


@contextmanager
def failing_at(size: int, job: Job) -> Iterator[Executor]:
    with in_this_process(job) as executor:
        assert isinstance(executor, Local)
        executor.__class__ = Failing
        executor.at = size  # type: ignore[attr-defined]
        yield executor


def branch(
    folder: Path, size: int, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, RunFiles]:
    """Trains with failures. Returns the exit code, what was printed, and the run."""
    how = session.How(open_executor=partial(failing_at, size), say=print)
    ended = session.sweep(loaded(folder), folder / "run", how)
    capsys.readouterr()
    code = tell(ended, as_json=False)
    printed = capsys.readouterr()
    return code, printed.out + printed.err, ended.run


def answer_in(run: RunFiles) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.place / "branches.json").read_text())
    return found


def resume(run: RunFiles) -> dict[str, Any]:
    command("resume", str(run.place), "--no-ray")
    return answer_in(run)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("truth")
    how = session.How(open_executor=in_this_process)
    return answer_in(session.sweep(loaded(folder), folder / "run", how).run)


@pytest.mark.parametrize("lost", [(), (1,), (0, 1)])
def test_a_batch_size_that_fails_is_told_and_tried_again(
    truth: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: tuple[int, ...]
) -> None:
    code, said, run = branch(tmp_path, 32, capsys)
    assert code == 3
    problem = "4 of 4 branches at batch size 32 failed: ValueError: too many."
    assert said.count(problem) == 2, "at both points"
    assert f"orchestrate resume {run.place}" in said
    answer = answer_in(run)
    assert not answer["complete"]
    assert not answer["verdicts"], "a failed branch is not one that diverged"
    assert all(problem in each for each in answer["problems"].values())
    states = sorted(Path(str(run.place)).glob("checkpoints/state-*.pt"))
    assert len(states) == 2
    for each in lost:
        states[each].unlink()
    assert resume(run) == truth
    assert not Path(str(run.place / "checkpoints")).exists()


def test_a_trunk_that_fails_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = branch(tmp_path, 8, capsys)
    assert code == 1
    assert "ValueError: too many" in said


def test_a_compact_run_that_is_not_complete_goes_on(
    truth: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, run = branch(tmp_path, 32, capsys)
    command("export", str(run.place), str(tmp_path / "compact"))
    assert resume(RunFiles(tmp_path / "compact")) == truth
