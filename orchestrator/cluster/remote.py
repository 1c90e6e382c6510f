"""Access to a cluster that `ray up FILE` has started, by SSH as Ray's own commands do it.

One connection forwards the port of the head's dashboard, whose job interface accepts sweeps. It
also transfers the token that the dashboard asks for, which is kept in memory only."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import ClientError
from ray.job_submission import JobDetails, JobSubmissionClient

from orchestrator.programs.starting import free_port
from orchestrator.records import BadInput

DASHBOARD_PORT = 8265

TUNNEL = f"""
import os, signal, sys, threading
def end():
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=end, daemon=True).start()
from ray.autoscaler.sdk import run_on_cluster
sys.tracebacklimit = 0  # the message of an error is enough
file, port, command = sys.argv[1:]
run_on_cluster(file, cmd=command, port_forward=[(int(port), {DASHBOARD_PORT})])
"""
"""Ends with its standard input, and so with this process, however it ends. So does its `ssh`, which
is of its group, and would wait for ever: it doesn't tell a remote terminal that input ended."""

# Looks for the token where Ray does; `ray get-auth-token` would take seconds to start.
GREETING = (
    'echo "<<${RAY_AUTH_TOKEN:-$(cat "${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}" '
    '2> /dev/null)}>>"; cat > /dev/null'
)
GREETED = re.compile(r"<<(.*)>>")

QUIET = (
    "ray._private.runtime_env.packaging",
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
)

RUNS = "~/results"
"""The folder of runs on the head."""

RECONNECT_SECONDS = 5.0

PATIENCE_SECONDS = 600.0
"""Seconds without a connection after which a command that follows a job ends: the cluster may be
down."""

LAST_LINES = 15


@dataclass(frozen=True, kw_only=True)
class Head:
    """The head of a cluster, usable while the connection to it lasts."""

    client: JobSubmissionClient
    dashboard: str

    def submit(
        self, run: str, arguments: Sequence[str], files: Mapping[str, bytes], digest: str
    ) -> str:
        """Starts `orchestrate` with these arguments on the head, in a folder with these files. It
        runs as a job that goes on when this process ends, and keeps the digest of what it was
        given. Returns the name of the job."""
        name = re.sub(r"[^a-zA-Z0-9]+", "-", run).strip("-")
        with tempfile.TemporaryDirectory(prefix="orchestrate-") as folder:
            for path, content in files.items():
                file = Path(folder) / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            found: str = self.client.submit_job(
                # The answer is read from the run's files, not from the job's output.
                entrypoint=f"orchestrate {shell_words(arguments)} > /dev/null",
                submission_id=f"{name}-{time.strftime('%Y%m%d-%H%M%S')}",
                runtime_env={"working_dir": folder},
                metadata={"run": run, "digest": digest},
            )
        return found

    def job(self, run: str) -> JobDetails | None:
        """The last job that was submitted for this run, or None."""
        found = [job for job in self.client.list_jobs() if (job.metadata or {}).get("run") == run]
        return max(found, key=lambda job: job.start_time or 0, default=None)

    def lines(self, job: str) -> Iterator[str]:
        """The lines that a job prints, until it ends."""
        chunks = self.client.tail_job_logs(job)
        rest = ""
        with asyncio.Runner() as runner:
            while (chunk := runner.run(anext(chunks, None))) is not None:
                *whole, rest = (rest + chunk).split("\n")
                yield from whole
        if rest:
            yield rest


def shell_words(arguments: Sequence[str]) -> str:
    """The arguments quoted for a shell, except that it still expands a leading `~/`."""
    return " ".join(
        "~/" + shlex.quote(each[2:]) if each.startswith("~/") else shlex.quote(each)
        for each in arguments
    )


def is_running(job: JobDetails | None) -> bool:
    return job is not None and not job.status.is_terminal()


@contextmanager
def reach(file: Path) -> Iterator[Head]:
    """Connects to the head of the cluster in `file`. Raises `BadInput` if it can't be reached."""
    port = free_port("127.0.0.1")
    command = [sys.executable, "-c", TUNNEL, str(file), str(port), GREETING]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        process_group=0,
    ) as process:  # fmt: skip
        address = f"127.0.0.1:{port}"
        token = _token(process, file)
        headers = {"Authorization": f"Bearer {token}"} if token else None
        try:
            client = JobSubmissionClient(f"http://{address}", headers=headers)
        except (ConnectionError, RuntimeError) as error:
            raise BadInput(
                f"The head was reached, but its dashboard does not answer: {error}. Check on the "
                f"head that Ray runs (`ray status`)."
            ) from None
        # Ray's messages about packing and connecting are of no use to the user.
        for name in QUIET:
            logging.getLogger(name).setLevel(logging.ERROR)
        yield Head(client=client, dashboard=address)


def _token(process: subprocess.Popen[bytes], file: Path) -> str:
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        text = line.decode(errors="replace").strip()
        if (greeted := GREETED.search(text)) is not None:
            return greeted[1]
        said.append(text)
    raise BadInput(
        f"The head of the cluster in {file} can't be reached. If it is not up, `ray up {file}` "
        f"starts it. Ray's output:\n" + "\n".join(said[-LAST_LINES:])
    )


def follow(file: Path, job_of: Callable[[Head], str], show: Callable[[str], None]) -> JobDetails:
    """Shows the output of a job until it ends. Reconnects whenever the connection is lost. Raises
    `BadInput` if the head can't be reached any more."""
    job = None
    seen, lost_at = 0, math.inf
    while True:
        try:
            with reach(file) as head:
                job, lost_at = job or job_of(head), math.inf
                for number, line in enumerate(head.lines(job)):
                    if number >= seen:
                        show(line)
                        seen += 1
                found = head.client.get_job_info(job)
                if found.status.is_terminal():
                    return found
        except (BadInput, RuntimeError, OSError, ClientError) as error:
            if job is None:
                raise BadInput(str(error)) from None
            now = time.monotonic()
            lost_at = min(lost_at, now)
            if (away := now - lost_at) > PATIENCE_SECONDS:
                raise BadInput(
                    f"The head of {file} has not answered for {away:.0f} s. If the cluster is up, "
                    f"the sweep goes on there, and the same command follows it again. If it was "
                    f"ended (`ray down`), its sweep was, too. It said: {error}",
                    code="unreachable",
                ) from None
            show(
                f"The connection was lost, which does not end the sweep. Reconnecting in "
                f"{RECONNECT_SECONDS:g} s ..."
            )
            time.sleep(RECONNECT_SECONDS)


def fetch(file: Path, run: str, to: Path) -> None:
    """Copies the files of a run on the head that are missing here. Raises `BadInput` if the head
    has no such run."""
    to.mkdir(parents=True, exist_ok=True)
    try:
        ray_command("rsync-down", str(file), f"{run}/", f"{to}/")
    except BadInput:
        if not any(to.iterdir()):
            to.rmdir()
        raise


def ray_command(command: str, *arguments: str) -> None:
    """Runs a command of Ray's own, such as `ray exec`. Raises `BadInput` if it fails."""
    result = subprocess.run(
        [sys.executable, "-m", "ray.scripts.scripts", command, *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if result.returncode != 0:
        said = result.stdout + result.stderr
        last = "\n".join(said.strip().splitlines()[-LAST_LINES:])
        raise BadInput(f"`ray {command} {shlex.join(arguments)}` failed:\n{last}")
