"""Sweeps of programs, whose processes and machines are killed, come to what they would have come to
anyway. Nothing of any program is left."""

import os
import random
import re
import signal
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest
import yaml
from conftest import wait_for
from driving import assert_same, trained_alone, waiting
from machines import can_be_had
from test_program_faults import marked
from test_two_machines import cluster

TRAIN = """
import json, os, sys, time
from pathlib import Path
import numpy as np

rate, size, seed, steps = float(sys.argv[1]), *map(int, sys.argv[2:5])
state = Path(sys.argv[5], "state.npz")
rank, ranks = (int(os.environ.get(*each)) for each in (("RANK", 0), ("WORLD_SIZE", 1)))
reports, stop = (Path(os.environ[f"ORCHESTRATE_{name}"]) for name in ("REPORTS", "STOP"))

def recorded():
    return len([*Path("run").glob("trials/**/trials-*")])  # each ends alone

def meet(step):
    "No rank is ahead of another, as in a training that exchanges gradients."
    reports.with_name(f"{step}-{rank}").touch()
    while not all(reports.with_name(f"{step}-{each}").exists() for each in range(ranks)):
        if stop.exists():
            sys.exit()
        time.sleep(0.002)

def wait():
    "See driving.waiting."
    while True:
        try:
            with open("after") as file:
                after, now = int(file.read()), os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return
        if recorded() < after:
            return
        reports.with_name(f"waits-{now}").touch()
        time.sleep(0.01)

step, x, least = 0, np.ones(4), np.inf
if state.exists():
    found = np.load(state)
    step, x = int(found["step"]), found["x"]
scales = np.array([1.0, 0.5, 0.2, 0.1])
while step < steps:
    noise = np.random.default_rng([seed, step]).normal(size=4) / size**0.5
    x = x - rate * scales * (x + noise)
    step += 1
    if step % 7 == 0 or step == steps:
        meet(step)
        loss = float(np.mean(scales * x**2))
        least = min(least, loss)
        if rank == 0:
            with reports.open("a") as file:
                file.write(json.dumps({"step": step, "loss": loss, "time": time.time()}) + "\\n")
            new = state.with_name("new.npz")
            np.savez(new, step=step, x=x)
            new.rename(state)
            if least >= 0.05 and step < steps:  # or this report ends the trial
                wait()
        if stop.exists():
            sys.exit()
    time.sleep(0.001)
"""
"""Descends a noisy quadratic, the same for the same arguments. Only a training that isn't over
waits: nothing is tried again if another one is killed."""

COMMAND = "python train.py {learning_rate} {batch_size} {seed} {steps} {folder}"


def sweep_of(folder: Path) -> Path:
    """Writes the sweep, each trial of which has two ranks, and its program."""
    (folder / "train.py").write_text(TRAIN)
    workload = {
        "program": COMMAND, "name": "mine", "goal": "loss < 0.05", "resumes": True,
        "launch": "ranks",
    }  # fmt: skip
    document = {
        "name": "programs", "workloads": [workload], "batch_sizes": [32, 64],
        "recipes": [
            {"name": "own", "space": {"learning_rate": {"low": 0.01, "high": 0.1, "scale": "log"}}}
        ],
        "search": {"trials": 6}, "budget": {"steps": 150}, "stop": {"dominated": False},
        "resources": {"examples_per_device": 16, "max_devices": 2},
        "faults": {"max_failures": 9},  # chance may hit one trial again and again
    }  # fmt: skip
    (folder / "sweep.yaml").write_text(yaml.safe_dump(document))
    return folder / "sweep.yaml"


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Marks all processes that a test starts, and checks that none is left."""
    found = uuid.uuid4().hex
    monkeypatch.setenv("MARK_OF_TEST", found)
    yield found
    wait_for(lambda: not programs(found) and not keepers(found))


def programs(mark: str, *, rank: str = "") -> list[int]:
    """The processes of programs that are there."""
    found = marked(mark).items()
    return [pid for pid, command in found if "train.py" in command and rank in environ(pid)]


def waiting_ones(mark: str, folder: Path, *, rank: int | None = None) -> list[int]:
    """The processes, of a rank, whose training waits, and not for an earlier attack: they go on
    until there is another `after`."""
    now = (folder / "after").stat().st_mtime_ns
    found = programs(mark, rank="" if rank is None else f"\0RANK={rank}")
    places = {pid: re.findall(r"ORCHESTRATE_REPORTS=([^\0]+)", environ(pid)) for pid in found}
    return [
        pid
        for pid, place in places.items()
        if place and Path(place[0]).with_name(f"waits-{now}").exists()
    ]


def keepers(mark: str) -> list[int]:
    return [pid for pid, command in marked(mark).items() if "keeper.py" in command]


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def network(process: int) -> str:
    return os.readlink(f"/proc/{process}/ns/net")


def environ(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/environ").read_text()
    return ""


@pytest.mark.cluster
@can_be_had
def test_whatever_is_killed_on_a_cluster_the_answer_is_the_same(tmp_path: Path, mark: str) -> None:
    """The driver, a gang, a peer, a program of each rank, and a machine."""
    chance, run, log = random.Random(0), tmp_path / "run", tmp_path / "sweep.txt"
    sweep = sweep_of(tmp_path)
    truth = trained_alone(sweep)
    attacks = ["driver", "gang", "peer", "rank 0", "rank 1"]
    chance.shuffle(attacks)
    attacks.append("machine")
    env = {
        "MARK_OF_TEST": mark,
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        # By default, a machine is missed for 15 s before it counts as lost.
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_failure_threshold": "5",
    }

    def victims(how: str) -> list[int]:
        rank = None if how == "machine" else int(how in ("peer", "rank 1"))
        found = waiting_ones(mark, tmp_path, rank=rank)
        if how == "driver":
            return [process.pid] if found else []
        if how == "machine":
            return [other.first] if network(other.first) in map(network, found) else []
        return found if how.startswith("rank") else [parent(parent(each)) for each in found]

    def again() -> list[str]:
        lines = (run / "log.txt").read_text().splitlines()
        return [line for line in lines if "is tried again" in line]

    with cluster(tmp_path, [2, 2], **env) as ((head, other), env):
        command, done = ["sweep", sweep, "--out", run], list[str]()
        held = ExitStack()  # between two attacks, too, or all could end there
        while command:
            here = ("env", f"--chdir={tmp_path}", "orchestrate", *command, "--address", "auto")
            with head.running(log, *here, **env) as process:
                while len(done) < len(attacks) and process.poll() is None:
                    how = attacks[len(done)]
                    # Enough trials are left for both machines at the last attack.
                    held.enter_context(waiting(tmp_path, after=len(done)))
                    victim = chance.choice(wait_for(partial(victims, how), process, log))
                    before = again()
                    done.append(how)
                    if how == "driver":
                        os.killpg(victim, signal.SIGKILL)
                        wait_for(lambda: not programs(mark))
                        break
                    os.kill(victim, signal.SIGKILL)
                    wait_for(lambda least=before: len(again()) > len(least), process, log)
                if len(done) == len(attacks):
                    held.close()
                code = process.wait(timeout=900)
            assert code in {0, -signal.SIGKILL}, log.read_text()
            command = ["resume", run] if code else []
    assert len(done) == len(attacks)
    assert_same(run, truth)
