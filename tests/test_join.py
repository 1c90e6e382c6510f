"""A cluster that is there already is joined by those who have its token; ours refuses strangers."""

import json
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import assert_refused, orchestrate
from ray_nodes import Head, environment, free_port, running_head

pytestmark = pytest.mark.cluster

SMALL = {
    "goals": ["val/error < 0.95"],
    "search": {"trials": 2},
    "budget": {"steps": 50},
}


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with running_head() as head:
        yield head


@pytest.mark.parametrize("given_as", ["--address", "RAY_ADDRESS"])
def test_a_sweep_joins_the_cluster_and_leaves_it_running(
    head: Head, given_as: str, sweep_file: Callable[..., Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    env = environment(RAY_AUTH_TOKEN=head.token)
    cpus_only = {"gpus_per_device": 0}
    command = ["sweep", sweep_file(**SMALL, resources=cpus_only), "--out", run]
    if given_as == "--address":
        command += ["--address", head.address]
    else:
        env["RAY_ADDRESS"] = head.address
    result = orchestrate(*command, env=env)
    assert result.returncode == 0, result.stderr
    assert len((run / "frontier.csv").read_text().splitlines()) == 3
    log = (run / "log.txt").read_text()
    assert "gpus_on_demand=3" in log, "those to be had on demand count"
    assert "embedded=False" in log, log
    assert head.answers()


@pytest.mark.parametrize(
    "token",
    [{}, {"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_TOKEN_PATH": "/nonexistent"}],
    ids=["none", "wrong", "unreadable"],
)
def test_a_cluster_whose_token_we_lack_is_refused_with_advice(
    head: Head, token: dict[str, str], sweep_file: Callable[..., Path], tmp_path: Path
) -> None:
    errors = refusal(head.address, sweep_file(**SMALL), tmp_path / "run", environment(**token))
    assert "ray get-auth-token" in errors
    assert head.answers()


def test_a_cluster_open_to_everyone_is_joined_only_on_demand(
    sweep_file: Callable[..., Path], tmp_path: Path
) -> None:
    """With its token in hand, Ray would join it and then refuse what the cluster asks of us."""
    with running_head(mode="disabled") as head:
        env = environment(RAY_AUTH_TOKEN=head.token)
        errors = refusal(head.address, sweep_file(**SMALL), tmp_path / "run", env)
        assert "RAY_AUTH_MODE=disabled" in errors
        env["RAY_AUTH_MODE"] = "disabled"
        command = ["sweep", sweep_file(**SMALL, resources={"gpus_per_device": 0})]
        command += ["--out", tmp_path / "run", "--address", head.address]
        result = orchestrate(*command, env=env)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "no.such.host.invalid:6379", "nonsense"])
def test_where_no_cluster_is_the_address_is_refused(
    address: str, sweep_file: Callable[..., Path], tmp_path: Path
) -> None:
    address = address.format(port=free_port())
    env = environment(RAY_AUTH_TOKEN=secrets.token_hex(32))
    assert "HOST:PORT" in refusal(address, sweep_file(**SMALL), tmp_path / "run", env)


def refusal(address: str, sweep: Path, run: Path, env: dict[str, str]) -> str:
    """What the command says, in seconds and in its own words."""
    began = time.monotonic()
    result = orchestrate("sweep", sweep, "--out", run, "--address", address, env=env)
    assert_refused(result, "bad-input", address)
    assert time.monotonic() - began < 60  # left to itself, Ray tries for a quarter of an hour
    assert "gcs_client.cc" not in result.stderr
    assert not list(run.glob("trials/**/*.parquet"))
    return result.stderr


FROM_OUTSIDE = """
import json, os, sys, urllib.error, urllib.request
from pathlib import Path

os.environ["ORCHESTRATE_DASHBOARD"] = "1"

from orchestrator.cluster.connect import connect

import grpc, psutil, ray
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

def dashboard(headers):
    request = urllib.request.Request(f"http://{cluster.dashboard}/api/version", headers=headers)
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return opener.open(request, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code

def gcs():
    address = ray.get_runtime_context().gcs_address
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        try:
            return str(stub.CheckAlive(gcs_service_pb2.CheckAliveRequest(), timeout=60))
        except grpc.RpcError as error:
            return error.code().name

with connect(None, Path(sys.argv[1])) as cluster:
    token = (Path.home() / ".ray" / "auth_token").read_text()
    port = int(cluster.dashboard.rpartition(":")[2])
    sockets = [s for s in psutil.net_connections("tcp") if s.status == psutil.CONN_LISTEN]
    print(json.dumps({
        "dashboard": dashboard({}),
        "dashboard with the token": dashboard({"Authorization": f"Bearer {token}"}),
        "dashboard listens on": [s.laddr.ip for s in sockets if s.laddr.port == port],
        "control plane": gcs(),
    }))
"""


def test_a_ray_of_our_own_refuses_strangers(tmp_path: Path) -> None:
    """Its control plane listens on all interfaces; only the token keeps them out."""
    result = subprocess.run(
        [sys.executable, "-c", FROM_OUTSIDE, tmp_path / "log.txt"],
        env=environment(HOME=str(tmp_path)),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {
        "dashboard": 401,
        "dashboard with the token": 200,
        "dashboard listens on": ["127.0.0.1"],
        "control plane": "UNAUTHENTICATED",
    }
