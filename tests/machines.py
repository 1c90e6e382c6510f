"""Separate machines for tests. Each has its own network, processes and folder of Ray: a set of
Linux namespaces that end with their first process. So `ray stop`, ports and `ray down` on one
machine can't affect processes of others. All machines see the same files, but each has its own home
folder."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import wait_for
from ray_nodes import running

NAMESPACES = ("--net", "--pid", "--mount")

RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}

BEGIN = """
mkdir -p /tmp/ray /run/sshd && mount -t tmpfs none /tmp/ray && ip link set lo up
sed "/^root:/ s|:/root:|:$1:|" /etc/passwd > $0/passwd && mount --bind $0/passwd /etc/passwd
mount --bind $0 $1
echo ready
sleep infinity & wait
"""
"""The first process of a machine also buries those whose parents are gone. Home is at the same
place on all, in each with files of its own; ssh looks for it in /etc/passwd."""

MINE = """
import os, time
from contextlib import suppress
from pathlib import Path
from orchestrator.workloads.digits import DigitsMLP

class Mine(DigitsMLP):
    def loss(self, model, batch):
        with suppress(FileNotFoundError):
            while len(batch[0]) > 2:  # and not only looked at before the sweep
                Path("{waiting}", str(os.getpid())).touch()
                time.sleep(0.05)
        return super().loss(model, batch)
"""
"""Trains while there is no folder for those who wait, in which each would leave its process id."""

LATER = (
    MINE.replace("> 2:", "> 2 and int(Path('{waiting}', 'after').read_text()) <= recorded():")
    + """
def recorded():
    files = Path("{runs}").rglob("trials/**/*.parquet")
    return sum(pq.read_metadata(file).num_rows for file in files)
"""
).replace("import os, time", "import os, time\nimport pyarrow.parquet as pq")
"""Waits there once so many trials are recorded as `wait_after` says."""

can_be_had = pytest.mark.skipif(
    os.getuid() != 0 or subprocess.run(["unshare", *NAMESPACES, "true"], check=False).returncode,
    reason="needs the right to make namespaces",
)


def wait_after(waiting: Path, count: int) -> None:
    """Makes trainings wait, but those that wait now go on until so many trials are recorded."""
    new = Path(tempfile.mkdtemp(dir=waiting.parent))
    (new / "after").write_text(str(count))
    with suppress(FileNotFoundError):
        waiting.rename(new.with_suffix(".over"))
    new.rename(waiting)


@dataclass(frozen=True, kw_only=True)
class Machine:
    address: str
    home: Path
    """As seen from outside."""
    first: int
    """Its first process, as seen from outside."""

    def command(self, *command: object, **env: str) -> list[str]:
        """Returns the command that runs `command` on this machine from outside."""
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        home = self.home.parent / "home"
        kept = {"HOME": str(home), "PATH": path, **RAY, **env}
        return [
            "nsenter", f"--target={self.first}", *NAMESPACES, f"--wdns={home}",
            "env", "-i", *(f"{name}={value}" for name, value in kept.items()), *map(str, command),
        ]  # fmt: skip

    def run(self, *command: object, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*command, **env), capture_output=True, text=True, timeout=900, check=False
        )

    def do(self, *command: object, **env: str) -> str:
        """Runs a command, which must succeed, and returns its output."""
        result = self.run(*command, **env)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def running(
        self, log: Path, *command: object, **env: str
    ) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return running(self.command(*command, **env), None, log)


@contextmanager
def machines(folder: Path, count: int) -> Iterator[list[Machine]]:
    """Makes the given number of machines in one network: 10.0.0.1 and so on."""
    with ExitStack() as stack:
        found = [stack.enter_context(_machine(folder, number)) for number in range(1, count + 1)]
        hub = found[0]
        _ip(hub, "link add hub type bridge")
        _ip(hub, f"addr add {hub.address}/24 dev hub")
        _ip(hub, "link set hub up")
        _ip(hub, "route add default dev hub")  # by which Ray finds its own address
        for number, machine in enumerate(found[1:]):
            _ip(hub, f"link add to{number} type veth peer name eth0 netns {machine.first}")
            _ip(hub, f"link set to{number} master hub up")
            _ip(machine, f"addr add {machine.address}/24 dev eth0")
            _ip(machine, "link set eth0 up")
            _ip(machine, f"route add default via {hub.address}")
        yield found


@contextmanager
def _machine(folder: Path, number: int) -> Iterator[Machine]:
    home, place = folder / f"machine-{number}", folder / "home"
    home.mkdir()
    place.mkdir(exist_ok=True)
    command = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", "bash", "-c"]
    with subprocess.Popen(
        [*command, BEGIN, home, place], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            first = wait_for(children.read_text, process).split()[0]
            yield Machine(address=f"10.0.0.{number}", home=home, first=int(first))
        finally:
            process.kill()


def _ip(machine: Machine, arguments: str) -> None:
    # From outside: the other machine's first process is not to be seen from within.
    command = ["nsenter", f"--target={machine.first}", "--net", "ip", *arguments.split()]
    subprocess.run(command, check=True)
