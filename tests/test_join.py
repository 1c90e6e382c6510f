"""A cluster that is there already is joined by those who have its token."""

import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_nodes import Head, environment, free_port, running_head

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with running_head() as head:
        yield head


JOIN = """
import os, signal, sys
from pathlib import Path
from orchestrator.cluster.connect import connect
from orchestrator.records import BadInput
import ray

told = []
signal.signal(signal.SIGTERM, lambda *_: told.append("to end"))
for address in sys.argv[2:]:
    try:
        with connect(address or None, Path(sys.argv[1])):
            print("computed", ray.get(ray.remote(lambda: 6 * 7).remote()))
    except BadInput as error:
        print(error.code, str(error))
    os.kill(os.getpid(), signal.SIGTERM)  # such as while the answer is written, without Ray
assert told == ["to end"] * len(sys.argv[2:]), told
"""


def joining(log: Path, *addresses: str, env: dict[str, str]) -> list[str]:
    """What comes of joining the cluster at each of the addresses, in our words."""
    done = subprocess.run(
        [sys.executable, "-c", JOIN, log, *addresses],
        env=env, capture_output=True, text=True, check=False,
        timeout=800,  # left to itself, Ray tries for a quarter of an hour
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "gcs_client.cc" not in done.stderr
    said = done.stdout.splitlines()
    assert len(said) == len(addresses)
    for line, address in zip(said, addresses, strict=True):
        assert line.startswith("computed") or (line.startswith("bad-input ") and address in line)
    return said


def test_only_who_has_its_token_joins_a_cluster_which_runs_on(head: Head, tmp_path: Path) -> None:
    for token in ({"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_TOKEN_PATH": "/nonexistent"}):
        (said,) = joining(tmp_path / "log.txt", head.address, env=environment(**token))
        assert "ray get-auth-token" in said
    env = environment(RAY_AUTH_TOKEN=head.token)
    assert joining(tmp_path / "log.txt", head.address, env=env) == ["computed 42"]
    assert head.answers()


def test_a_cluster_open_to_everyone_is_joined_only_on_demand(tmp_path: Path) -> None:
    """With its token in hand, Ray would join it and then refuse what the cluster asks of us."""
    with running_head(mode="disabled") as head:
        env = environment(RAY_AUTH_TOKEN=head.token)
        (said,) = joining(tmp_path / "log.txt", head.address, env=env)
        assert "RAY_AUTH_MODE=disabled" in said
        env |= {"RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": head.address}
        assert joining(tmp_path / "log.txt", "", env=env) == ["computed 42"]


def test_where_no_cluster_is_the_address_is_refused(tmp_path: Path) -> None:
    addresses = [f"127.0.0.1:{free_port()}", "no.such.host.invalid:6379", "nonsense"]
    env = environment(RAY_AUTH_TOKEN=secrets.token_hex(32))
    assert all("HOST:PORT" in said for said in joining(tmp_path / "log.txt", *addresses, env=env))


def test_where_the_home_folder_cannot_be_written_the_token_is_kept_in_memory() -> None:
    token = "from orchestrator.cluster import embedded as e; e._keep_token_private();"
    asked = [sys.executable, "-c", token + "print(e.ray_internals.token())"]
    env = environment(HOME="/dev/null")
    found = [subprocess.check_output(asked, env=env, text=True).strip() for _ in range(2)]
    assert all(re.fullmatch("[0-9a-f]{64}", each) for each in found)
    assert found[0] != found[1]
