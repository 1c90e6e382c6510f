"""A gang across two machines, each with a network of its own, trains what it trains on one."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import wait_for
from machines import Machine, can_be_had, machines

pytestmark = [pytest.mark.cluster, can_be_had]

SWEEP = {
    "name": "gang",
    "workloads": ["digits/mlp"],
    "goals": ["val/error < 0.1"],
    "recipes": ["sgd"],
    "batch_sizes": [64],
    "search": {"trials": 3},
    "budget": {"steps": 300},
    "stop": {"dominated": False},
    "resources": {"examples_per_device": 32, "max_devices": 2},
}


@contextmanager
def cluster(folder: Path, cpus: list[int]) -> Iterator[tuple[list[Machine], dict[str, str]]]:
    """A machine for each number of CPUs; the first is the head."""
    folder.mkdir()
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
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


def test_ranks_on_two_machines_train_the_same_as_on_one(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(SWEEP))

    def sweep_into(run: Path) -> list[object]:
        return ["orchestrate", "sweep", tmp_path / "sweep.yaml", "--out", run, "--address", "auto"]

    with cluster(tmp_path / "one", [2]) as ((alone,), env):
        alone.do(*sweep_into(tmp_path / "alone"), **env)
    with cluster(tmp_path / "two", [1, 1]) as ((head, other), env):
        head.do(*sweep_into(tmp_path / "apart"), **env)
        run, log = tmp_path / "lost", tmp_path / "lost.txt"
        with head.running(log, *sweep_into(run), **env) as sweep:
            wait_for(lambda: list(run.glob("trials/**/trial-*.parquet")), sweep, log)
            # One trial is over, the next has begun.
            other.do("pkill", "--signal=KILL", "--full", r"^ray::(_Peer|Gang|Resource)")
            assert sweep.wait(300) == 0, log.read_text()
        assert "is tried again" in (run / "log.txt").read_text()
    one = curves(tmp_path / "alone")
    assert len(one) > 3 * 5
    assert curves(tmp_path / "apart") == one
    assert curves(run) == one


def curves(run: Path) -> pa.Table:
    (file,) = run.glob("measurements/**/study.parquet")
    return pq.ParquetFile(file).read().drop_columns(["seconds"])
