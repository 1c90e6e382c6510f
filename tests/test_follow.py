"""A command that follows a job on a cluster, whose head comes and goes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT, refused

from orchestrator.cli.options import INTERRUPTED
from orchestrator.cli.remote import stop, sweep
from orchestrator.cluster import remote
from orchestrator.planning.sweep_file import load_sweep
from orchestrator.records import BadInput


class Heads:
    """Heads that are reached, or not, one after another; each takes a minute."""

    def __init__(self, *there: list[str] | None) -> None:
        self.there, self.now = iter(there), 0.0

    @contextmanager
    def reach(self, file: Path) -> Iterator[Any]:
        self.now += 60
        if (lines := next(self.there, None)) is None:
            raise BadInput("no route to host")
        over = SimpleNamespace(status=SimpleNamespace(is_terminal=lambda: "end" in lines))
        client = SimpleNamespace(get_job_info=lambda job: over)
        yield SimpleNamespace(client=client, lines=lambda job: lines)
        if "end" not in lines:
            raise ConnectionError


def follow(monkeypatch: pytest.MonkeyPatch, *there: list[str] | None) -> list[str]:
    heads, shown = Heads(*there), list[str]()
    monkeypatch.setattr(remote, "reach", heads.reach)
    time = SimpleNamespace(monotonic=lambda: heads.now, sleep=lambda seconds: None)
    monkeypatch.setattr(remote, "time", time)
    remote.follow(Path("cluster.yaml"), lambda head: "job", shown.append)
    return [line for line in shown if "connection" not in line]


def test_each_line_is_shown_once_however_often_the_connection_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = [None] * 9
    assert follow(monkeypatch, ["1"], *lost, ["1", "2"], *lost, ["1", "2", "end"]) == [
        "1", "2", "end",
    ]  # fmt: skip


def test_a_head_that_is_gone_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("unreachable", "cluster.yaml", "no route to host", "ray down"):
        follow(monkeypatch, ["1"])


def test_runs_of_the_same_name_are_kept_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []
    head = SimpleNamespace(job=asked.append)  # no job trains it
    monkeypatch.setattr(remote, "reach", lambda file: nullcontext(head))
    for project in ("one", "two", "one"):
        (tmp_path / project).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / project)
        stop(Path("cluster.yaml"), "runs/digits")
    stop(Path("cluster.yaml"), f"{tmp_path}/two/runs/../runs/digits")
    stop(Path("cluster.yaml"), "s3://lab/runs/digits")
    one, two, again, other, bucket = asked
    assert (again, other, bucket) == (one, two, "s3://lab/runs/digits")
    assert one != two
    assert all(each.startswith("~/results/digits-") for each in (one, two))


class Jobs:
    """Ray's interface to jobs, which never end. Who waits for their lines is interrupted."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def list_jobs(self) -> list[Any]:
        return self.all

    def submit_job(self, **job: Any) -> str:
        status = SimpleNamespace(is_terminal=lambda: False)
        self.all.append(SimpleNamespace(**job, status=status, start_time=0))
        return str(job["submission_id"])

    def tail_job_logs(self, job: str) -> None:
        raise KeyboardInterrupt


def test_a_job_is_followed_only_by_the_command_that_began_it(
    monkeypatch: pytest.MonkeyPatch, sweep_file: Callable[..., Path]
) -> None:
    """What another one changes would be dropped without a word."""
    jobs: Any = Jobs()
    head = remote.Head(client=jobs, dashboard="")
    monkeypatch.setattr(remote, "reach", lambda file: nullcontext(head))

    def swept(**changes: Any) -> int:
        described = load_sweep(sweep_file(**changes))
        here = ROOT / "cluster.local.yaml"
        return sweep(here, described, "runs/mine", None, None, yes=True, as_json=False)

    assert swept() == swept() == INTERRUPTED
    with refused("bad-input", "another sweep file", "orchestrate stop runs/mine --cluster"):
        swept(seed=7)
    assert len(jobs.all) == 1
