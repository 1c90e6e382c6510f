"""The capacity and the price of the machines of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from orchestrator.files.yaml_files import read_yaml
from orchestrator.planning.sweep import Resources
from orchestrator.planning.sweep_file import validated_as
from orchestrator.records import BadInput

PRICES = Path(__file__).parent.parent / "prices.yaml"

ON_DEMAND = "gpus_on_demand"
"""The resource by which the head of an autoscaled cluster states how many GPUs can be had on
demand. Ray itself does not tell a driver about machines that are not started yet."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine of a cluster, or several machines of the same kind."""

    name: str
    cpus: int
    gpus: int
    count: int = 1
    price_per_hour: float | None = None
    """Price of one machine for an hour in USD; None if not known."""
    kind: str | None = None
    """What the cloud calls such a machine."""

    def ranks(self, resources: Resources) -> int:
        """Number of ranks that fit on one of these machines."""
        fitting = self.cpus // resources.cpus_per_rank
        if resources.gpus_per_device:
            # A rank's share lies on one GPU, so what is left of each GPU adds up to nothing.
            fitting = min(fitting, self.gpus * int(1 / resources.gpus_per_device))
        return fitting

    def __str__(self) -> str:
        return f"{self.name}, with {_shape(self.cpus, self.gpus)}"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Machines to train on: the ones this process is connected to, or those of a cluster file."""

    machines: tuple[Machine, ...]
    gpus_on_demand: int = 0
    """Number of GPUs that machines which can still be started may have, as the head states it."""
    stated: float | None = None
    """The same, as the head of a cluster file will state it."""
    dashboard: str | None = None
    embedded: bool = False
    """Whether this process started the cluster and will end it."""

    def __str__(self) -> str:
        said = "; ".join(f"{each.count} x {each}" for each in self.machines) + "."
        if self.price_per_hour is not None:
            cost = f"{self.price_per_hour:.2f} USD per hour while all of them run"
            said += f" About {cost}, at on-demand prices of {read_yaml(PRICES)['as_of']}."
        elif kinds := {m.kind for m in self.machines if m.kind and m.price_per_hour is None}:
            said += f" What they cost is unknown: add {', '.join(sorted(kinds))} to {PRICES}."
        if self.stated not in (None, self.gpus):
            said += (
                f" They have {self.gpus} GPUs, but the head states {ON_DEMAND}: {self.stated:g}, "
                f"which its sweeps count on. Write {self.gpus}, unless a quota allows fewer."
            )
        return said

    @property
    def cpus(self) -> int:
        return sum(each.cpus * each.count for each in self.machines)

    @property
    def gpus(self) -> int:
        """Number of GPUs that are present or can be had on demand."""
        return max(self.gpus_on_demand, sum(each.gpus * each.count for each in self.machines))

    @property
    def price_per_hour(self) -> float | None:
        """Price per hour in USD while all machines run; None if a machine's price isn't known."""
        prices = [each.price_per_hour for each in self.machines]
        if None in prices:
            return None
        return sum((each.price_per_hour or 0) * each.count for each in self.machines)


def fit_resources(resources: Resources, cluster: Cluster) -> Resources:
    """`resources` with nothing left open. Raises `BadInput` if the cluster can't hold them."""
    fitted = resources.on(cluster.gpus)
    gpus = fitted.gpus_per_device or 0
    if gpus and not cluster.gpus:
        raise BadInput(
            f"resources.gpus_per_device: {gpus:g} was asked for, but the cluster has no GPU. "
            f"Leave it out to train on the devices that the cluster has, or write 0 for CPUs. A "
            f"run that began with it goes on with `orchestrate sweep FILE --out RUN`."
        )
    devices = ranks_at_once(fitted, cluster)
    if not devices:
        largest = max(cluster.machines, key=lambda each: (each.gpus if gpus else 0, each.cpus))
        raise BadInput(
            f"resources: each rank needs {_shape(resources.cpus_per_rank, gpus)}, which no machine "
            f"of the cluster has. The largest is {largest}. Lower cpus_per_rank or "
            f"gpus_per_device."
        )
    if resources.examples_per_device is not None and resources.max_devices > devices:
        raise BadInput(
            f"resources.max_devices: {resources.max_devices} devices were asked for, each with "
            f"{_shape(resources.cpus_per_rank, gpus)}, but the cluster has room for {devices}. "
            f"Lower max_devices or add machines."
        )
    return fitted


def ranks_at_once(resources: Resources, cluster: Cluster) -> int:
    """Number of ranks that can train at once, over all trials."""
    now = sum(each.ranks(resources) * each.count for each in cluster.machines)
    if resources.gpus_per_device:
        return max(now, cluster.gpus_on_demand * int(1 / resources.gpus_per_device))
    return now


def _shape(cpus: float, gpus: float) -> str:
    return f"{cpus:g} CPU{'s' * (cpus != 1)}" + f" and {gpus:g} GPU{'s' * (gpus != 1)}" * bool(gpus)


class _Kind(BaseModel):
    resources: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = None
    max_workers: int | None = Field(None, ge=0)
    node_config: dict[str, Any] | None = None


class _ClusterFile(BaseModel):
    """What is read of a file for `ray up`, which has more keys."""

    provider: dict[str, Any] | None = None
    available_node_types: dict[str, _Kind] | None = None
    head_node_type: str | None = None
    max_workers: int = Field(2, ge=0)


def described_in(file: Path) -> Cluster | None:
    """The cluster of a file for `ray up`, with as many workers as the file allows. None if the file
    does not state the resources of its machines."""
    described = validated_as(_ClusterFile, read_yaml(file), str(file))
    prices = read_yaml(PRICES).get(str((described.provider or {}).get("type"))) or {}
    left, found, stated = described.max_workers, list[Machine](), None
    kinds = (described.available_node_types or {}).items()
    # Machines with the most GPUs come first, for the mixture that holds the most ranks.
    for name, kind in sorted(kinds, key=lambda item: -(item[1].resources or {}).get("GPU", 0)):
        is_head = name == described.head_node_type
        if kind.resources is None:
            return None
        count = 1 if is_head else min(left, left if kind.max_workers is None else kind.max_workers)
        left -= 0 if is_head else count
        stated = kind.resources.get(ON_DEMAND) if is_head else stated
        node = kind.node_config or {}
        called = node.get("InstanceType") or node.get("machineType")
        machine = Machine(
            name=name,
            cpus=int(kind.resources.get("CPU", 0)),
            gpus=int(kind.resources.get("GPU", 0)),
            count=count,
            price_per_hour=prices.get(str(called)),
            kind=called and str(called),
        )
        found.append(machine)
    there = tuple(each for each in found if each.count > 0)
    return Cluster(machines=there, stated=stated) if found else None
