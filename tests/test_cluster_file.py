"""Cluster files against Ray's own schema, and what in them costs money or lets strangers in."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, assert_refused, orchestrate, refused
from test_growth import command

from orchestrator.planning.machines import (  # before ray, which reads RAY_AUTH_MODE
    described_in,
    fit_resources,
    ranks_at_once,
)

# isort: split
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)
from ray.autoscaler._private.util import prepare_config, validate_config

from orchestrator.planning.sweep import Resources
from orchestrator.planning.sweep_file import SWEEPS, load_sweep

RENTED = ("cluster.yaml", "cluster.gcp.yaml")
KUBERNETES = "docs/kuberay.yaml"


def of(*files: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("file", files, indirect=True, scope="module")


on_demand = of(*RENTED, KUBERNETES)
"""Of machines that one has, Ray sees what there is."""


@pytest.fixture(scope="module", params=[*RENTED, "cluster.local.yaml"])
def file(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def written(file: str) -> dict[str, Any]:
    *_, document = yaml.safe_load_all((ROOT / file).read_text())
    return document


@pytest.fixture(scope="module")
def prepared(file: str, written: dict[str, Any]) -> dict[str, Any]:
    """With Ray's defaults filled in, as `ray up` does before it talks to a cloud, and its
    autoscaler with what Kubernetes has, where each thing is in some namespace."""
    config: dict[str, Any]
    if file == KUBERNETES:
        metadata = {**written["metadata"], "namespace": "default"}
        config = _derive_autoscaling_config_from_ray_cr({**written, "metadata": metadata})
    else:
        config = prepare_config(written)
    return config


@of(*RENTED, "cluster.local.yaml", KUBERNETES)
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


@on_demand
def test_gpu_machines_come_and_go(file: str, prepared: dict[str, Any]) -> None:
    types = dict(prepared["available_node_types"])
    head = types.pop(prepared["head_node_type"])
    assert head["resources"]["CPU"] == head["resources"].get("GPU", 0) == 0
    assert head["max_workers"] == 0
    assert types
    for worker in types.values():
        assert worker["min_workers"] == 0
        assert 0 < worker["max_workers"] <= prepared["max_workers"]
        assert worker["resources"]["GPU"] > 0
    assert 0 < prepared["idle_timeout_minutes"] <= 30
    if file == KUBERNETES:
        gpus = sum(w["max_workers"] * w["resources"]["GPU"] for w in types.values())
        assert head["resources"]["gpus_on_demand"] == gpus


@of(*RENTED)
def test_what_can_be_rented_is_known_and_has_a_price(file: str, written: dict[str, Any]) -> None:
    cluster = described_in(ROOT / file)
    assert written["provider"]["cache_stopped_nodes"] is False, "what stops is not paid for"
    head = written["available_node_types"]["head"]
    assert head["resources"]["gpus_on_demand"] == cluster.gpus
    assert cluster.price_per_hour is not None
    assert re.search(r"on-demand prices of 20\d\d-\d\d\.$", str(cluster))


def test_a_kind_without_a_price_and_gpus_that_the_head_counts_wrongly_are_named(
    tmp_path: Path,
) -> None:
    text = (ROOT / "cluster.yaml").read_text()
    changed = text.replace("max_workers: 4 ", "max_workers: 16 ").replace("g5.xl", "g9.xl")
    (tmp_path / "cluster.yaml").write_text(changed)
    said = str(described_in(tmp_path / "cluster.yaml"))
    assert re.search(r"unknown: add g9\.xlarge to \S+prices\.yaml", said)
    assert re.search(r"19 GPUs, but the head states gpus_on_demand: 7, .* Write 19,", said)


CLUSTER = """
max_workers: 3
available_node_types:
  head: {resources: {CPU: 0}}
  small: {resources: {CPU: 4, GPU: 1}}
  large: {resources: {CPU: 8, GPU: 4}, max_workers: 1}
head_node_type: head
"""


@pytest.mark.parametrize(
    ("resources", "ranks"),
    [
        ({}, 6),
        ({"cpus_per_rank": 2}, 6),
        ({"cpus_per_rank": 4}, 4),
        ({"cpus_per_rank": 8}, 1),
        ({"gpus_per_device": 0.5}, 12),
        ({"gpus_per_device": 0.6}, 6),
        ({"gpus_per_device": 0, "cpus_per_rank": 4}, 4),
        ({"examples_per_device": 8, "max_devices": 6}, 6),
    ],
)
def test_ranks_are_counted_machine_by_machine(
    tmp_path: Path, resources: dict[str, Any], ranks: int
) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    cluster = described_in(tmp_path / "cluster.yaml")
    fitted = fit_resources(Resources.model_validate(resources), cluster)
    assert ranks_at_once(fitted, cluster) == ranks


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"available_node_types": {"head": None}}, "available_node_types.head"),
        (
            {"available_node_types": {"head": {"resources": {"CPU": "many"}}}},
            "available_node_types.head.resources.CPU",
        ),
        (
            {"available_node_types": {"head": {"resources": {"CPU": float("nan")}}}},
            "available_node_types.head.resources.CPU",
        ),
        (
            {"available_node_types": {"head": {"resources": {"CPU": -4}}}},
            "available_node_types.head.resources.CPU",
        ),
        ({"max_workers": -1}, "max_workers"),
        ({"provider": "aws"}, "provider"),
    ],
)
def test_a_mistake_in_it_is_told_by_its_place(
    tmp_path: Path, changes: dict[str, Any], place: str
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(CLUSTER), **changes}))
    with refused("wrong-value", f"{file}: {place}:"):
        described_in(file)


@pytest.mark.dear
def test_a_shape_that_no_machine_holds_is_refused_before_anything_starts(
    tmp_path: Path, sweep_file: Callable[..., Path]
) -> None:
    """No head is looked for: there is none."""
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    for verb, resources, words in (
        ("plan", {"cpus_per_rank": 9}, ("9 CPUs and 1 GPU", "large, with 8 CPUs and 4 GPUs")),
        ("plan", {"gpus_per_device": 0, "cpus_per_rank": 9}, ("9 CPUs,", "large, with 8 CPUs")),
        ("sweep", {"examples_per_device": 8, "max_devices": 7}, ("max_devices: 7", "room for 6")),
    ):
        with refused("bad-input", *words):
            command(verb, str(sweep_file(resources=resources)), "--cluster", str(file))


@pytest.mark.dear
def test_what_cannot_be_foretold_is_not_submitted_unless_someone_agrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MNIST is in no package, and no head is looked for."""
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    monkeypatch.delenv("ORCHESTRATE_DATA", raising=False)
    result = orchestrate("sweep", "subsets", "--cluster", file, cwd=tmp_path)
    assert_refused(result, "not-confirmed", "--yes", "2 x small")


@on_demand
@pytest.mark.parametrize("sweep", sorted(SWEEPS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_rank_of_every_sweep_fits_a_machine(prepared: dict[str, Any], sweep: Path) -> None:
    asked = load_sweep(sweep).resources
    gpus = 1 if asked.gpus_per_device is None else asked.gpus_per_device
    assert any(
        asked.cpus_per_rank <= kind["resources"]["CPU"] and gpus <= kind["resources"].get("GPU", 0)
        for kind in prepared["available_node_types"].values()
    )


def test_strangers_are_kept_out(prepared: dict[str, Any]) -> None:
    """Ray is never started without its token, and its dashboard is on the loopback interface."""
    for role in ("head", "worker"):
        (start,) = (c for c in prepared[f"{role}_start_ray_commands"] if "ray start" in c)
        assert "RAY_AUTH_MODE=token" in start
        assert ("--dashboard-host=127.0.0.1" in start) == (role == "head")
    assert "~/.ray/auth_token" in prepared["cluster_synced_files"]


@of(KUBERNETES)
def test_kubernetes_keeps_strangers_out_and_has_our_ray_and_name(written: dict[str, Any]) -> None:
    spec = written["spec"]
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert "enableIngress" not in spec["headGroupSpec"]
    assert spec["headGroupSpec"]["rayStartParams"]["dashboard-host"] == "127.0.0.1"
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    assert f"ray=={spec['rayVersion']}" in pinned
    commands = (ROOT / "docs" / "kubernetes.md").read_text()
    name = written["metadata"]["name"]
    assert set(re.findall(r"svc/(\S+)", commands)) == {f"{name}-head-svc"}
    named = re.findall(r"(?:ray\.io/cluster=|delete raycluster |get secret )(\S+)", commands)
    assert named == [name] * 3


@of(KUBERNETES)
def test_the_user_of_the_image_may_write_to_the_storage_of_pods(written: dict[str, Any]) -> None:
    (user,) = re.findall("(?m)^USER (.*)$", (ROOT / "Containerfile").read_text())
    spec = written["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert group["template"]["spec"]["securityContext"]["fsGroup"] == int(user)
