"""A real Ray on this machine, for tests, started apart from what joins it."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from conftest import wait_for

RAY = Path(sys.executable).parent / "ray"


@dataclass(frozen=True, kw_only=True)
class Head:
    """A Ray of its own on this machine."""

    process: subprocess.Popen[bytes]
    address: str
    token: str

    def answers(self) -> bool:
        env = environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=self.token)
        status = subprocess.run(
            [RAY, "status", "--address", self.address], env=env, capture_output=True, check=False
        )
        return self.process.poll() is None and status.returncode == 0


def environment(**changes: str) -> dict[str, str]:
    """Ours, without anything that tells Ray of a cluster or a token."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "HOME": "/nonexistent", **changes}


def free_port() -> int:
    """A port that is free, below those that the system gives to others until it is taken, and above
    those of Ray's workers."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def running_head(*, mode: str = "token") -> Iterator[Head]:
    token = secrets.token_hex(32)
    env = environment(RAY_AUTH_MODE=mode, RAY_AUTH_TOKEN=token, RAY_USAGE_STATS_ENABLED="0")
    # Ray's sockets lie in this folder, and the path of a socket has 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    command = [
        RAY, "start", "--head", "--block", "--port=0", "--include-dashboard=false",
        f"--ray-client-server-port={free_port()}", "--dashboard-agent-listen-port=0",
        "--num-cpus=1", "--object-store-memory=100000000", f"--temp-dir={folder}",
    ]  # fmt: skip
    log = folder / "head.log"
    try:
        with running(command, env, log) as process:
            file = folder / "ray_current_cluster"  # written once everything runs
            wait_for(lambda: file.exists() and file.read_text().strip(), process, log)
            port = file.read_text().strip().rpartition(":")[2]
            yield Head(process=process, address=f"127.0.0.1:{port}", token=token)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(
    command: list[str | Path], env: dict[str, str] | None, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        # At once: asked politely, it would take half a minute. Workers end when they miss their
        # raylet.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
