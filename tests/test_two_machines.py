"""A gang across two machines, each with a network of its own, trains what it trains on one."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from conftest import TINY, first_trials, wait_for
from machines import LATER, Machine, can_be_had, machines, wait_after

from orchestrator.records import Measurement, Outcome
from orchestrator.results import RunFiles

pytestmark = [pytest.mark.cluster, can_be_had]

SWEEP = {
    **TINY,
    "goals": ["val/error < 0.1"],
    "batch_sizes": [64],
    "budget": {"steps": 300},
    "stop": {"dominated": False},
    "resources": {"examples_per_device": 32, "max_devices": 2},
}

METRICS = ("batch/loss", "val/error", "val/loss")


@contextmanager
def cluster(
    folder: Path, cpus: list[int], **more: str
) -> Iterator[tuple[list[Machine], dict[str, str]]]:
    """A machine for each number of CPUs; the first is the head."""
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), **more}
    with ExitStack() as stack:
        found = stack.enter_context(machines(folder, len(cpus)))
        head = ["--head", "--include-dashboard=false"]
        for machine, count in zip(found, cpus, strict=True):
            log = folder / f"{machine.address}.txt"
            role = head if machine is found[0] else [f"--address={found[0].address}:6379"]
            command = ["ray", "start", *role, "--block", f"--num-cpus={count}"]
            started = machine.running(log, *command, "--object-store-memory=100000000", **env)
            process = stack.enter_context(started)
            wait_for(lambda log=log: "Ray runtime started" in log.read_text(), process, log)
        yield found, env


def test_ranks_on_two_machines_train_the_same_as_on_one(
    tmp_path: Path, train_on_pair: Callable[..., tuple[list[Measurement], Outcome]]
) -> None:
    """Some of them a second time, since the processes of one machine are killed."""
    file, run, log, wait = (tmp_path / n for n in ("sweep.yaml", "run", "log.txt", "wait"))
    (tmp_path / "mine.py").write_text(LATER.format(waiting=wait, runs=run))
    file.write_text(yaml.safe_dump({**SWEEP, "workloads": [f"{tmp_path}/mine.py:Mine"]}))
    wait_after(wait, 1)
    with cluster(tmp_path, [1, 1]) as ((head, other), env):
        sweep = ("orchestrate", "sweep", file, "--out", run, "--address", "auto")
        with head.running(log, *sweep, **env) as process:
            # One trial is over, the next has begun.
            wait_for(lambda: list(wait.glob("[0-9]*")), process, log)
            other.do("pkill", "--signal=KILL", "--full", r"^ray::(_Peer|Gang|Resource)")
            wait.rename(tmp_path / "waited")
            assert process.wait(300) == 0, log.read_text()
    assert "is tried again" in (run / "log.txt").read_text()
    (study,) = RunFiles(run).studies()
    for trial in first_trials(study, 0):
        measured, _ = train_on_pair(trial)
        curve = RunFiles(run).curve(study.key, trial.index).to_pylist()
        assert len(curve) > 5
        assert [[row["step"], *map(row.get, METRICS)] for row in curve] == [
            [one.step, *map(one.metrics.get, METRICS)] for one in measured
        ]


SLOW = """
import os, time
from pathlib import Path
from orchestrator.workloads.digits import DigitsMLP

class Slow(DigitsMLP):
    steps = 0

    def loss(self, model, batch):
        if model.training and len(batch[0]) == 64:
            self.steps += 1
            new = Path(f"{os.environ['PLACE']}.new-{os.getpid()}")
            new.write_text(str(self.steps))
            new.replace(f"{os.environ['PLACE']}-{os.getpid()}")
            while self.steps > 100 and Path(f"{os.environ['PLACE']}.hold").exists():
                time.sleep(0.02)
            time.sleep(0.02)
        return super().loss(model, batch)
"""


def test_a_machine_that_is_taken_away_with_notice_loses_no_step(tmp_path: Path) -> None:
    """Checkpoints are an hour apart, so without notice its trial would begin anew."""
    workload, file, run, log = (tmp_path / n for n in ("slow.py", "sweep.yaml", "run", "log.txt"))
    workload.write_text(SLOW)
    changes = {
        "workloads": [f"{workload}:Slow"],
        "goals": ["val/error < 0"],
        "search": {"trials": 2},
        "budget": {"steps": 600},
        "resources": {"stack": 1},
        "checkpoint": {"every_seconds": 3600},
    }
    file.write_text(yaml.safe_dump(SWEEP | changes))

    (hold := tmp_path / "steps.hold").touch()  # nothing ends before the notice

    def steps() -> dict[str, int]:
        return {place.name: int(place.read_text()) for place in tmp_path.glob("steps-*")}

    with cluster(tmp_path, [1, 1], PLACE=str(tmp_path / "steps")) as ((head, other), env):
        sweep = ("orchestrate", "sweep", file, "--out", run, "--address", "auto")
        with head.running(log, *sweep, **env) as process:
            wait_for(lambda: len(found := steps()) == 2 and min(found.values()) > 100, process, log)
            (gang,) = other.do("pgrep", "--full", "^ray::Gang").split()
            before = steps()[f"steps-{gang}"]
            other.do("pkill", "--full", "^ray::Gang")
            hold.unlink()
            wait_for(lambda: other.run("pgrep", "--full", "^ray::Gang").returncode, process, log)
            other.do("pkill", "--signal=KILL", "--full", "ray")
            assert process.wait(300) == 3, log.read_text()
    (study,) = RunFiles(run).studies()
    trials = RunFiles(run).trials(study.key).to_pylist()
    assert [trial["steps"] for trial in trials] == [600, 600]
    assert max(trial["resumed_steps"] for trial in trials) >= before > 100
