"""Ranks meet where nobody else can reach them, and by the way that suits what they exchange."""

import psutil
import pytest
import torch
import torch.distributed as dist
from conftest import serve

from orchestrator.training import ranks


@pytest.mark.dear
def test_ranks_of_one_machine_listen_on_loopback_only() -> None:
    with ranks.launch_ranks(2, serve) as (first, processes):
        sockets = [each for each in psutil.net_connections("tcp") if each.pid in processes]
        first.from_first(None)
    addresses = {each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN}
    assert addresses, "somewhere they meet"
    assert addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_objects_of_ranks_with_gpus_stay_out_of_their_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No machine of this kind runs these tests, so one is pretended."""
    joined = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(ranks, "_compute_alike", lambda: None)
    monkeypatch.setattr(ranks, "_interface_to", lambda host: None)
    monkeypatch.setattr(dist, "TCPStore", lambda *_, **__: None)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: joined.append(backend))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    gpu = torch.device("cuda")
    with ranks.open_ranks(rank=0, count=2, host="127.0.0.1", port=0, device=gpu):
        (backend,) = joined
    by_device = dist.BackendConfig(dist.Backend(backend)).get_device_backend_map()
    assert by_device == {"cpu": "gloo", "cuda": "nccl"}
