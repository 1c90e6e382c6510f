"""How commands train: with progress, a report that is rewritten, and the answer at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.options import DONE, FAILED, GOAL_UNREACHED, INTERRUPTED, TO_GO_ON, print_json
from orchestrator.cli.planning import agree
from orchestrator.cli.terminal import ERROR_FILE, answer, command, complain, say, showing
from orchestrator.records import BadInput
from orchestrator.sweeping.interrupts import to_go_on

if TYPE_CHECKING:
    from orchestrator.analysis.branch_answer import Answer
    from orchestrator.results import RunFiles
    from orchestrator.sweeping.executor import Executor, Job
    from orchestrator.sweeping.progress import Progress
    from orchestrator.sweeping.session import Ended, How, OpensExecutor

CODES = {"done": DONE, "unreached": GOAL_UNREACHED, "failed": FAILED, "interrupted": INTERRUPTED}
"""How a session ended -> the exit code of its command."""


def refuse_together(address: str | None, cluster: str | Path | None, ray: bool | None) -> None:
    """Raises `BadInput` for options that each say where a command trains."""
    asked = {"--address": address, "--cluster": cluster, "--no-ray": ray is False}
    if len(given := [option for option, value in asked.items() if value]) > 1:
        raise BadInput(f"Give one of {' and '.join(given)}.", code="not-together")


def how_to_train(
    *,
    address: str | None,
    data_dir: Path | None,
    track: Sequence[str] | None = None,
    yes: bool,
    ray: bool | None,
) -> How:
    """The cluster at `address` trains, or one that is started here, or this process; without `ray`,
    what helps."""
    from orchestrator.sweeping.session import How

    return How(
        open_executor=_executor(address, ray=ray),
        data_dir=data_dir,
        track=track or (),
        agree=lambda outlook: agree(outlook, yes=yes),
        say=say,
        showing=_showing,
    )


def _executor(address: str | None, *, ray: bool | None) -> OpensExecutor:
    if ray is None and not (address or os.environ.get("RAY_ADDRESS")):
        return _what_helps
    if ray is not False:
        from orchestrator.cluster.sweeps import ray_at

        return ray_at(address, say)
    from orchestrator.sweeping.local import in_this_process
    from orchestrator.training import gpus_here

    if gpus_here():
        say("--no-ray trains on the CPU: this machine's GPU is not used.")
    return in_this_process


def _what_helps(job: Job) -> AbstractContextManager[Executor]:
    """Trains on a Ray that is started on this machine, or in this process if Ray can't help."""
    from orchestrator.sweeping.local import in_this_process, why_here

    if (why := why_here(job)) is None:
        return _executor(None, ray=True)(job)
    say(f"Training in this process, without Ray, since {why}. --ray starts Ray.")
    return in_this_process(job, raise_errors=False)


@contextmanager
def _showing(run: RunFiles, progress: Progress) -> Iterator[None]:
    from orchestrator.cli.live import rewritten

    with showing(progress), rewritten(run):
        yield


def tell(ended: Ended, *, as_json: bool) -> int:
    """Prints the answer of a session. Returns the exit code of its command."""
    from orchestrator.cli.answers import print_frontier, what_next

    run = ended.run
    if ended.branches is not None:
        print_branches(ended.branches, as_json)
    elif ended.rows:
        print_frontier(run, ended.rows, as_json)
    if ended.page is not None:
        say(f"Report: {ended.page}")
    go_on = command("resume", run.place)
    if ERROR_FILE in os.environ:  # called from Python, which may hold classes that no shell knows
        go_on = f"orchestrator.open_run({str(run.place)!r}).resume()"
    if ended.status == "interrupted":
        say(f"Interrupted. Go on with: {go_on}")
        return TO_GO_ON if to_go_on.is_set() else CODES[ended.status]
    if ended.status == "failed":
        complain(f"{ended.error}\nGo on with: {go_on}" if ended.page else ended.error)
    elif ended.branches is not None and ended.branches.queue.has_failed:
        say(f"Next: find out why branches failed ({run.place}/log.txt), then {go_on}")
    elif ended.rows:
        say(what_next(ended.rows, run.place))
    return CODES[ended.status]


def print_branches(found: Answer, as_json: bool) -> None:
    """Prints the answer of a run of branches."""
    from orchestrator.analysis.words import confirmed_in_words, schedules_in_words, verdict_in_words

    if as_json:
        print_json(found.to_json())
        return
    if not found.verdicts:
        say("No branch has been trained far enough for a verdict.")
    for verdict in found.verdicts:
        answer(verdict_in_words(verdict))
    for examples, problem in found.queue.problems.items():
        answer(f"After {examples:,} examples: {problem}")
    for said in schedules_in_words(found.schedules, found.trunk.budget_examples):
        answer(said)
    for result in found.confirmed:
        answer(confirmed_in_words(result))
    if found.verdicts:
        say(f"Schedules for your trainer, also as recipes: {found.run.place / 'schedules.yaml'}")
