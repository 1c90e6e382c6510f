"""A cluster that `ray up` starts over SSH, used from a machine that is none of it."""

import json
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, TINY, assert_refused, made, train_all, wait_for
from driving import recorded
from machines import LATER, Machine, can_be_had, machines, wait_after
from test_branching import TRUNK
from test_docs import blocks

from orchestrator.planning.sweep_file import load_sweep
from orchestrator.results import frontier_of, to_csv

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")

pytestmark = [
    pytest.mark.cluster,
    can_be_had,
    pytest.mark.skipif(not (SSHD and shutil.which("rsync")), reason="needs sshd and rsync"),
]

SWEEP = {
    **TINY, "name": "away", "workloads": ["mine.py:Mine"], "goals": ["val/error < 0.05"],
    "batch_sizes": [32, 64], "search": {"trials": 4}, "budget": {"steps": 2000},
    "stop": {"dominated": False}, "resources": {"stack": 1},
}  # fmt: skip

FAR = {
    "name": "far", "points": [20], "factors": [1, 2], "seeds": 3,
    "trunk": {**TRUNK, "workload": "mine.py:Mine", "budget": {"examples": 4000}},
    "learning_rate": {"rules": ["linear"], "multiples": [1]},
    "length": {"examples": 512, "at_most": 512},
}  # fmt: skip

SSHD_CONFIG = """
HostKey {key}
AuthorizedKeysFile {key}.pub
StrictModes no
UsePAM no
PidFile none
"""

NEAR = {**TINY, "name": "near", "batch_sizes": [64], "search": {"trials": 2}}

NAMES = {
    "runs/fashion_mnist": "runs/away",
    "orchestrate sweep fashion_mnist --cluster": "orchestrate sweep sweep.yaml --cluster",
    "plan fashion_mnist": "plan near.yaml",
    "/results/mine": "/results/fashion_mnist",  # which is there then: one is trained
    "/results/": "$HOME/results/",
    " fashion_mnist --out": " near.yaml --out",
    "my_sweep.yaml": "near.yaml",
    "tar c -C /results": "tar cf near.tar -C $HOME/results",
}
"""Names in the pages -> names of this test."""


def of_page(name: str) -> list[str]:
    """The commands of a page, in its order, for files of this test."""
    lines = []
    for place, block in blocks("sh"):
        if place.startswith(f"docs/{name}"):
            lines += re.sub(r"\\\n\s*", " ", block).splitlines()
    for old, new in NAMES.items():
        lines = [line.replace(old, new) for line in lines]
    return lines


@dataclass
class Page:
    """The commands of a page that no test has given yet."""

    left: list[str]

    def take(self, start: str) -> list[str]:
        """Returns the first command that begins so, as words."""
        line = next(line for line in self.left if line.startswith(start))
        self.left.remove(line)
        return shlex.split(line, comments=True)


@dataclass(frozen=True, kw_only=True)
class Away:
    page: Page
    laptop: Machine
    head: Machine
    worker: Machine
    server: subprocess.Popen[bytes]
    """Runs all the time."""


@pytest.fixture
def away(tmp_path: Path) -> Iterator[Away]:
    """Three machines, with the shipped cluster file for two of them on the third."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    with ExitStack() as stack:
        laptop, *others = stack.enter_context(machines(tmp_path, 3))
        for machine in others:
            config, log = machine.home / "sshd.conf", machine.home / "sshd.txt"
            config.write_text(SSHD_CONFIG.format(key=key))
            (machine.home / "venv").symlink_to(ROOT / ".venv")
            server = stack.enter_context(machine.running(log, SSHD, "-D", "-e", "-f", config))
            wait_for(lambda log=log: "Server listening" in log.read_text(), server, log)
        cluster = yaml.safe_load((ROOT / "cluster.local.yaml").read_text())
        head, worker = others
        cluster |= {
            "cluster_name": tmp_path.parent.name + tmp_path.name,  # one's own connections
            "provider": {"type": "local", "head_ip": head.address, "worker_ips": [worker.address]},
            "auth": {"ssh_user": "root", "ssh_private_key": str(key)},
            # All trials are for the worker.
            "head_start_ray_commands": [
                line.replace("--head", "--head --num-cpus=0")
                for line in cluster["head_start_ray_commands"]
            ],
            "worker_start_ray_commands": [
                # Workers end by themselves when they have missed their head for so long.
                line.replace("RAY_AUTH", "RAY_gcs_rpc_server_reconnect_timeout_s=5 RAY_AUTH")
                + " --num-cpus=1" * ("ray start" in line)
                for line in cluster["worker_start_ray_commands"]
            ],
            "min_workers": 1,
            "max_workers": 1,
            # The project is there and installed already.
            "file_mounts": {},
            "setup_commands": [
                line for line in cluster["setup_commands"] if "RAY_AUTH_MODE" in line
            ],
        }
        (laptop.home / "cluster.yaml").write_text(yaml.safe_dump(cluster))
        (laptop.home / "sweep.yaml").write_text(yaml.safe_dump(SWEEP))
        project = head.home / "orchestrate"  # where the cluster files copy it to
        project.mkdir()
        (project / "cluster.yaml").write_text(yaml.safe_dump(cluster))
        for folder in (laptop.home, head.home, project):
            (folder / "near.yaml").write_text(yaml.safe_dump(NEAR))
        mine = LATER.format(waiting=tmp_path / "waiting", runs=head.home / "results")
        (laptop.home / "mine.py").write_text(mine)
        wait_after(tmp_path / "waiting", 2)
        commands = of_page("cluster")
        page = Page([line for line in commands if line.startswith(("ray ", "orchestrate "))])
        laptop.do(*page.take("orchestrate plan"))
        laptop.do(*page.take("ray up"))
        status = ("bash", "-ic", "ray status")
        wait_for(lambda: runs(worker, "raylet"), server)
        wait_for(lambda: "0.0/1.0 CPU" in head.run(*status).stdout, server)
        yield Away(page=page, laptop=laptop, head=head, worker=worker, server=server)


def test_a_sweep_outlives_the_terminal_that_began_it(
    away: Away, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laptop, page = away.laptop, away.page
    log = tmp_path / "sweep.txt"
    assert "Device-time of all trials" in laptop.do(*page.take("ray exec"))
    sweep = page.take("orchestrate sweep")
    with laptop.running(log, *sweep) as client:
        (there,) = wait_for(lambda: [*away.head.home.glob("results/away-*")], client, log)
        wait_for(lambda: recorded(there) >= 2, client, log)
    # The same command again follows what runs already.
    with laptop.running(tmp_path / "again.txt", *sweep) as client:
        again = (tmp_path / "again.txt").read_text
        wait_for(lambda: "is being trained already" in again(), client)

    assert "orchestrate resume" in laptop.run(*page.take("orchestrate stop")).stderr
    seen = json.loads(laptop.do(*page.take("orchestrate status runs"), "--json"))
    assert 2 <= seen["finished"] < seen["planned"]
    laptop.do(*page.take("orchestrate report"))
    shutil.rmtree(tmp_path / "waiting")
    resumed = laptop.run(*page.take("orchestrate resume"), "--json")
    assert all(row["reached"] for row in json.loads(resumed.stdout))
    assert "does not see" in resumed.stderr

    here = laptop.home / "runs" / "away"
    monkeypatch.chdir(laptop.home)
    truth, planned = made(tmp_path / "truth", load_sweep(laptop.home / "sweep.yaml"))
    train_all(truth, planned)
    assert (here / "frontier.csv").read_text() == to_csv(frontier_of(truth))
    assert (here / "report.html").exists()
    assert not recorded(here), "put together, as there"

    token = (away.head.home / ".ray" / "auth_token").read_text()
    assert re.fullmatch("[0-9a-f]{64}", token)
    for folder in (laptop.home, there, tmp_path):
        holding = subprocess.run(
            ["grep", "-rl", token, folder], capture_output=True, text=True, check=False
        )
        assert set(holding.stdout.split()) <= {
            str(machine.home / ".ray" / "auth_token") for machine in (away.head, away.worker)
        }

    (laptop.home / "branches.yaml").write_text(yaml.safe_dump(FAR))
    branch = ("orchestrate", "branch", "branches.yaml", "--cluster", "cluster.yaml", "--json")
    answer = json.loads(laptop.do(*branch))
    assert answer["complete"]
    assert (laptop.home / "runs" / "far" / "schedules.yaml").exists()

    kubernetes(away)
    # Nobody was left to close the connection of the clients that were killed: it ends all the same.
    wait_for(lambda: not runs(laptop, "ssh"), away.server)
    laptop.do(*page.take("ray down"))
    assert not page.left
    for machine in (away.head, away.worker):
        wait_for(lambda: not runs(machine, "raylet"), away.server)  # noqa: B023
    result = laptop.run("orchestrate", "stop", "runs/away", "--cluster", "cluster.yaml")
    assert_refused(result, "bad-input", "ray up cluster.yaml")


def kubernetes(away: Away) -> None:
    """The commands that the page about Kubernetes gives on the head."""
    on_head = [line.removeprefix("on-head ") for line in of_page("kubernetes")]
    for line in on_head:
        if line.startswith(("orchestrate status", "ray job submit", "tar")):
            waits = line.partition("|")[0].replace("--no-wait", "")
            done = away.head.run("bash", "-ic", f"cd orchestrate && {waits}")
            assert done.returncode == 0, (line, done.stdout, done.stderr)
    assert (away.head.home / "results" / "fashion_mnist" / "report.html").exists()
    assert (away.head.home / "orchestrate" / "near.tar").exists()


def runs(machine: Machine, program: str) -> bool:
    time.sleep(0.5)  # to ask costs more than to wait
    return program in machine.do("ps", "-e", "-o", "comm=")
