"""Sweeps on a real Slurm: a controller and two nodes, which are processes of this machine."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import wait_for
from machines import LATER, wait_after
from ray_nodes import free_port, running

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        os.getuid() != 0 or not all(map(shutil.which, ("slurmctld", "slurmd", "munged"))),
        reason="needs slurm-wlm and munge, and root",
    ),
]

CONF = """
ClusterName=test
SlurmctldHost={host}({address})
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdTimeout=10
ReturnToService=2
KillWait=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MpiDefault=none
NodeName=n1 NodeHostname={host} NodeAddr={address} Port={ports[1]} CPUs=1
NodeName=n2 NodeHostname={host} NodeAddr={address} Port={ports[2]} CPUs=1
PartitionName=all Nodes=n1,n2 Default=YES State=UP GraceTime=60
PartitionName=urgent Nodes=n1,n2 State=UP PriorityTier=2
"""

SWEEP = """
name: my_sweep
workloads: ["mine.py:Mine"]
goals: [val/error < 0.05]
recipes: [sgd]
batch_sizes: [16, 64]
search: {trials: 6}
budget: {steps: 600}
resources: {stack: 1}
"""


EDITED = {
    "--nodes=1 ": "--nodes=2 ",
    "#SBATCH --gpus-per-node=1": "#",
    "#SBATCH --cpus-per-task=8": "#SBATCH --cpus-per-task=1",
}


@dataclass(frozen=True, kw_only=True)
class Slurm:
    folder: Path
    """The one in which its user works."""
    env: dict[str, str]
    controller: subprocess.Popen[bytes]
    start_node: Callable[[str], AbstractContextManager[subprocess.Popen[bytes]]]

    def do(self, *command: str) -> str:
        """What a command prints."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=600,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout, done.stderr, self.said())
        return done.stdout + done.stderr

    def said(self) -> str:
        return "".join(file.read_text() for file in self.folder.glob("orchestrate-*.txt"))

    def submit(self) -> str:
        return self.do("sbatch", "mine.sbatch", "my_sweep.yaml").split()[-1]

    def state(self, job: str) -> str:
        return re.findall(r"JobState=(\w+)", self.do("scontrol", "show", "job", job))[0]

    def watched(self, job: str) -> bool:
        """Whether a process of this Slurm is left that watches over a step of the job."""
        command = ["pgrep", "--full", rf"^slurmstepd: \[{job}\."]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
        for process in found:
            with suppress(OSError):  # it has ended
                if str(self.folder).encode() in Path(f"/proc/{process}/environ").read_bytes():
                    return True
        return False

    def runs_again(self, job: str) -> bool:
        """Starts a job that is back in the queue, as Slurm does after two minutes."""
        if self.state(job) != "PENDING" or self.watched(job):
            return False
        self.do("scontrol", "update", f"JobId={job}", "StartTime=now")
        return True

    def until(self, condition: Callable[[], object]) -> None:
        try:
            wait_for(condition, self.controller)
        except AssertionError:
            print(self.do("scontrol", "show", "job"), self.said())
            raise


@contextmanager
def running_slurm(folder: Path) -> Iterator[Slurm]:
    munge = folder / "munge"
    for place in (munge, folder / "state", folder / "spool-n1", folder / "spool-n2"):
        place.mkdir()
    for parent in folder.parents:  # munge's user has to reach its socket
        parent.chmod(parent.stat().st_mode | 0o011)
    folder.chmod(0o755)
    (munge / "key").write_bytes(os.urandom(1024))
    (munge / "key").chmod(0o400)
    for path in (munge, munge / "key"):
        shutil.chown(path, "munge", "munge")
    conf, ports = folder / "slurm.conf", [free_port() for _ in range(3)]
    host, address = socket.gethostname(), own_address()
    conf.write_text(CONF.format(host=host, address=address, folder=folder, ports=ports))
    env = {"HOME": str(folder), "SLURM_CONF": str(conf), "ORCHESTRATE_DASHBOARD": "0"}
    env["RAY_worker_niceness"] = "0"
    env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def start(*command: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return running([*command], env, folder / "output.txt")

    def start_node(name: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return start("slurmd", "-D", "-f", str(conf), "-N", name)

    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed"}
    places = [f"--{name}={munge / file}" for name, file in files.items()]
    munged = ("munged", "--foreground", *places, f"--log-file={munge / 'log'}")
    with ExitStack() as stack:
        process = stack.enter_context(start("setpriv", "--reuid=munge", "--clear-groups", *munged))
        wait_for((munge / "socket").exists, process, munge / "log")
        controller = stack.enter_context(start("slurmctld", "-D", "-f", str(conf)))
        stack.enter_context(start_node("n1"))
        slurm = Slurm(folder=folder, env=env, controller=controller, start_node=start_node)
        yield slurm
        for job in slurm.do("squeue", "--noheader", "--format=%A").split():
            slurm.do("scancel", job)
        slurm.until(lambda: not slurm.do("squeue", "--noheader"))


def own_address() -> str:
    """One by which machines reach each other: Ray takes loopback for something else."""
    words = subprocess.check_output(["hostname", "-I"], text=True).split()
    if not words:
        pytest.skip("needs a network")
    return words[0]


def test_a_sweep_survives_all_that_slurm_does_to_it(tmp_path: Path) -> None:
    """In turn the time is up, a node is lost, and the job is cancelled. The commands are those of
    docs/slurm.md."""
    wait, run = tmp_path / "wait", tmp_path / "runs/my_sweep"
    (tmp_path / "mine.py").write_text(LATER.format(waiting=wait, runs=run))
    (tmp_path / "my_sweep.yaml").write_text(SWEEP)

    def on_both_nodes() -> bool:
        return len([*wait.glob("[0-9]*")]) == 2

    with running_slurm(tmp_path) as slurm:
        slurm.do("orchestrate", "sweep", "my_sweep.yaml", "--no-ray", "--out", "runs/undisturbed")
        slurm.do("orchestrate", "init", "--slurm")
        script = tmp_path / "mine.sbatch"
        for before, after in EDITED.items():
            assert before in script.read_text()
            script.write_text(script.read_text().replace(before, after))
        wait_after(wait, 0)
        with slurm.start_node("n2"):
            job = slurm.submit()
            slurm.until(on_both_nodes)
            slurm.do("scancel", "--signal=USR1", job)  # as Slurm does before the time is up
            slurm.until(lambda: "Ending" in slurm.said())
            wait.rename(tmp_path / "waited-0")
            slurm.until(lambda: slurm.state(job) == "PENDING")
            assert len([*run.glob("checkpoints/*.pt")]) == 2, "both were saved at once"
            wait_after(wait, 3)
            slurm.until(lambda: slurm.runs_again(job))
            slurm.until(on_both_nodes)
        slurm.until(lambda: slurm.state(job) == "PENDING" and not slurm.watched(job))
        # Under its old number, Slurm may still be ending it on the node that comes back.
        slurm.do("scancel", job)
        for left in wait.glob("[0-9]*"):
            left.unlink()
        with slurm.start_node("n2"):
            slurm.until(lambda: slurm.do("sinfo", "-h", "-o", "%T %D").split() == ["idle", "2"])
            job = slurm.submit()
            slurm.until(on_both_nodes)
            wait_after(wait, 5)
            slurm.until(on_both_nodes)
            slurm.do("scancel", job)
            slurm.until(lambda: slurm.state(job) == "CANCELLED")
            job = slurm.submit()
            wait.rename(tmp_path / "waited")
            slurm.until(lambda: slurm.state(job) == "COMPLETED")
    assert "2 of the 2 nodes of this Slurm job train." in slurm.said()
    undisturbed = tmp_path / "runs/undisturbed/frontier.csv"
    assert (run / "frontier.csv").read_bytes() == undisturbed.read_bytes()


FAKE = """#!/bin/sh
trap "exit 130" TERM
touch started
while true; do sleep 0.1; done
"""
"""A sweep that ends as soon as it is told to."""


def test_a_preempted_job_is_put_back_though_its_sweep_has_ended(tmp_path: Path) -> None:
    """With `--exclusive`, say, there is no number of cores for each task."""
    with running_slurm(tmp_path) as slurm:
        slurm.do("orchestrate", "init", "--slurm")
        fake, script = tmp_path / "orchestrate", tmp_path / "mine.sbatch"
        fake.write_text(FAKE)
        fake.chmod(0o755)
        lines = re.sub("#SBATCH --(gpus|cpus)-per.*", "#", script.read_text())
        script.write_text(lines.replace(str(Path(sys.executable).parent), str(tmp_path)))
        job = slurm.submit()
        slurm.until((tmp_path / "started").exists)
        slurm.do("sbatch", "--partition=urgent", "--wrap=sleep 60")
        slurm.until(lambda: slurm.state(job) in {"PENDING", "FAILED"})
        assert slurm.state(job) == "PENDING", slurm.said()


def test_the_first_node_waits_for_the_others() -> None:
    """Its sweep may be done at once, and a node that comes later would look for it in vain."""
    names = ("SLURM_STEP_ID", "SLURM_PROCID")
    counts = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NUM_NODES": "3"}
    job = {"SLURM_JOB_ID": str(os.getpid() % 5000), "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}
    code = "import orchestrator.cluster.slurm as s; print(s.Node.here().port, flush=True); "
    with subprocess.Popen(
        [sys.executable, "-c", code + "print(s.take_part())"],
        env={**os.environ, **dict.fromkeys(names, "0"), **counts, **job},
        stdout=subprocess.PIPE, text=True,
    ) as first:  # fmt: skip
        assert first.stdout is not None
        at = ("127.0.0.1", int(first.stdout.readline()) + 1)
        with wait_for(lambda: connected(at), first):
            with pytest.raises(subprocess.TimeoutExpired):
                first.wait(1)
            with socket.create_connection(at):
                assert first.stdout.read() == "True\n"


LENT = """
import os
import orchestrator.cluster.slurm as slurm

class Late:
    # When Python has no functions for signals any more.
    def __del__(self, kill=os.kill, number=os.getpid()):
        kill(number, 15)

late = Late()
slurm.FIRST_PORT = {port}
slurm.take_part()
"""


def test_a_lent_node_does_not_die_of_being_asked_to_end() -> None:
    """Slurm would tell that in place of the exit code by which a job is put back."""
    port = free_port()
    names = {"JOB_ID": 0, "STEP_ID": 0, "PROCID": 1, "STEP_NUM_TASKS": 2, "STEP_NUM_NODES": 2}
    job = {f"SLURM_{name}": str(number) for name, number in names.items()}
    env = {**os.environ, **job, "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}
    with (
        socket.create_server(("127.0.0.1", port)) as first,
        subprocess.Popen([sys.executable, "-c", LENT.format(port=port - 1)], env=env) as lent,
    ):
        first.settimeout(600)
        first.accept()[0].close()
        assert lent.wait() == 0


def connected(at: tuple[str, int]) -> socket.socket | None:
    with suppress(OSError):
        return socket.create_connection(at)
    return None
