"""Ray's own autoscaler, with GPU machines that are processes of this one."""

import json
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import TINY, wait_for
from machines import MINE, Machine, can_be_had, machines

import orchestrator

pytestmark = [pytest.mark.cluster, can_be_had]

MOST = 2
"""GPU machines at a time."""

CLUSTER: dict[str, Any] = {
    "cluster_name": "virtual",
    "max_workers": MOST,
    "idle_timeout_minutes": 0.1,
    "provider": {
        "type": "fake_multinode",
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    },
    "available_node_types": {
        "ray.head.default": {
            "resources": {"CPU": 0, "gpus_on_demand": MOST},
            "node_config": {},
            "max_workers": 0,
        },
        "gpu_worker": {
            "resources": {"CPU": 1, "GPU": 1, "object_store_memory": 100_000_000},
            "node_config": {},
            "min_workers": 0,
            "max_workers": MOST,
        },
    },
    "head_node_type": "ray.head.default",
    # What `ray up` would fill in.
    "auth": {},
    "file_mounts": {},
    **{
        key: []
        for key in (
            *("initialization_commands", "setup_commands", "cluster_synced_files"),
            *("head_setup_commands", "head_start_ray_commands"),
            *("worker_setup_commands", "worker_start_ray_commands"),
        )
    },
}

SWEEP: dict[str, Any] = {
    **TINY,
    "workloads": ["mine.py:Mine"],
    "goals": ["val/error < 0.1"],
    "batch_sizes": [32, 64, 128],
    "budget": {"steps": 500},
    "stop": {"dominated": False},
    "resources": {"gpus_per_device": 1},
}

WATCH = """
import time
import ray

ray.init(address="auto", log_to_driver=False, configure_logging=False)
while True:
    gpus = sum(node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"])
    print([gpus], flush=True)
    time.sleep(0.2)
"""


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """A machine with the head of a cluster whose workers come and go."""

    machine: Machine
    env: Mapping[str, str]
    head: subprocess.Popen[bytes]
    seen: Path
    waiting: Path

    def gpus(self) -> list[float]:
        """How many there were; Ray may have something to say in between."""
        lines = self.seen.read_text().splitlines(keepends=True)
        return [json.loads(line)[0] for line in lines if line[:1] == "[" and line[-2:] == "]\n"]

    def has(self, gpus: int) -> bool:
        seen = self.gpus()
        return bool(seen) and seen[-1] == gpus

    def sweep(self, folder: Path, log: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return self.machine.running(
            log, "orchestrate", "sweep", folder.parent / "sweep.yaml", "--out", folder,
            "--address", "auto", **self.env,
        )  # fmt: skip


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(CLUSTER))
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(SWEEP))
    env = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_FAKE_CLUSTER": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        # By default, a machine is missed for 15 s before it counts as lost.
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_failure_threshold": "2",
        "ORCHESTRATE_VIRTUAL_GPUS": "1",
    }
    log, seen, waiting = (tmp_path / name for name in ("head.txt", "seen.txt", "waiting"))
    waiting.mkdir()
    start = [
        "ray", "start", "--head", "--block", "--num-cpus=0", "--include-dashboard=false",
        f'--resources={{"gpus_on_demand": {MOST}}}', "--object-store-memory=100000000",
        f"--autoscaling-config={tmp_path / 'cluster.yaml'}",
    ]  # fmt: skip
    with machines(tmp_path, 1) as (machine,), machine.running(log, *start, **env) as head:
        wait_for(lambda: "Ray runtime started" in log.read_text(), head, log)
        with machine.running(seen, "python", "-c", WATCH, **env) as watch:
            found = Cloud(machine=machine, env=env, head=head, seen=seen, waiting=waiting)
            (machine.home / "mine.py").write_text(MINE.format(waiting=waiting))
            wait_for(found.gpus, watch, seen)
            yield found


def test_gpu_machines_come_for_a_sweep_and_go_after_it(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is lost on the way."""
    assert cloud.has(0)
    run, log = tmp_path / "run", tmp_path / "sweep.txt"
    with cloud.sweep(run, log) as sweep:
        wait_for(lambda: cloud.has(MOST) and len([*cloud.waiting.iterdir()]) >= MOST, sweep, log)
        cloud.machine.do("pkill", "-9", "--newest", "--full", "raylet/raylet")
        wait_for(lambda: not cloud.has(MOST), sweep, log)
        shutil.rmtree(cloud.waiting)
        assert sweep.wait(600) == 0, log.read_text()
    assert "failed for trial Gang" in (run / "log.txt").read_text()
    wait_for(lambda: cloud.has(0), cloud.head)
    assert max(cloud.gpus()) == MOST

    monkeypatch.chdir(cloud.machine.home)
    alone = orchestrator.sweep({**SWEEP, "resources": {}}, out=tmp_path / "alone", ray=False)
    assert (run / "frontier.csv").read_bytes() == (tmp_path / "alone/frontier.csv").read_bytes()
    assert all(row.reached for row in alone.frontier())
