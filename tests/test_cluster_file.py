"""Cluster files against Ray's own schema, and what in them costs money or lets strangers in."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import orchestrator.cluster  # noqa: F401  (before ray, which reads RAY_AUTH_MODE when imported)

# isort: split
from ray.autoscaler._private.util import prepare_config, validate_config

from orchestrator.sweep import SWEEPS, load_sweep

ROOT = Path(__file__).parent.parent


RENTED = ("cluster.yaml", "cluster.gcp.yaml")
rented = pytest.mark.parametrize("file", RENTED, indirect=True, scope="module")
"""Of machines that one has, Ray sees what there is."""


@pytest.fixture(scope="module", params=[*RENTED, "cluster.local.yaml"])
def file(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def written(file: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / file).read_text())
    return document


@pytest.fixture(scope="module")
def prepared(written: dict[str, Any]) -> dict[str, Any]:
    """With Ray's defaults filled in, as `ray up` does before it talks to a cloud."""
    config: dict[str, Any] = prepare_config(written)
    return config


def test_it_fits_the_schema_of_the_installed_ray(prepared: dict[str, Any]) -> None:
    validate_config(prepared)
    with pytest.raises(Exception, match="setup_comands"):
        validate_config({**prepared, "setup_comands": []})


def test_no_default_command_of_rays_slips_in(
    written: dict[str, Any], prepared: dict[str, Any]
) -> None:
    """Its defaults install another Ray and open the dashboard to every interface."""
    commands = {key for key in prepared if key.endswith("_commands") and prepared[key]}
    assert commands <= written.keys()


@rented
def test_gpu_machines_come_and_go(prepared: dict[str, Any]) -> None:
    types = dict(prepared["available_node_types"])
    head = types.pop(prepared["head_node_type"])
    assert head["resources"]["GPU"] == 0
    assert head["max_workers"] == 0
    assert types
    for worker in types.values():
        assert worker["min_workers"] == 0
        assert 0 < worker["max_workers"] <= prepared["max_workers"]
        assert worker["resources"]["GPU"] > 0
    assert head["resources"]["gpus_on_demand"] == prepared["max_workers"] * max(
        worker["resources"]["GPU"] for worker in types.values()
    )
    assert 0 < prepared["idle_timeout_minutes"] <= 30
    assert prepared["provider"]["cache_stopped_nodes"] is False


@rented
@pytest.mark.parametrize("sweep", sorted(SWEEPS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_rank_of_every_sweep_fits_a_machine(prepared: dict[str, Any], sweep: Path) -> None:
    asked = load_sweep(sweep).resources
    gpus = 1 if asked.gpus_per_device is None else asked.gpus_per_device
    assert any(
        asked.cpus_per_rank <= kind["resources"]["CPU"] and gpus <= kind["resources"]["GPU"]
        for kind in prepared["available_node_types"].values()
    )


def test_its_own_name_is_in_its_commands(file: str) -> None:
    """They were copied from one to the other."""
    named = re.findall(r"\b(cluster[\w.]*\.yaml)", (ROOT / file).read_text())
    assert set(named) == {file}


@pytest.mark.parametrize("role", ["head", "worker"])
def test_ray_is_never_started_without_its_token(prepared: dict[str, Any], role: str) -> None:
    (start,) = (c for c in prepared[f"{role}_start_ray_commands"] if "ray start" in c)
    assert "RAY_AUTH_MODE=token" in start
    assert "~/.ray/auth_token" in prepared["cluster_synced_files"]


def test_the_dashboard_is_on_the_loopback_interface(prepared: dict[str, Any]) -> None:
    (start,) = (c for c in prepared["head_start_ray_commands"] if "ray start" in c)
    assert "--dashboard-host=127.0.0.1" in start


def test_what_is_mounted_and_installed_is_there(prepared: dict[str, Any]) -> None:
    assert [Path(source) for source in prepared["file_mounts"].values()] == [Path()]
    (install,) = (c for c in prepared["setup_commands"] if "pip install" in c)
    assert "-c constraints.txt ." in install
    assert (ROOT / "constraints.txt").exists()
