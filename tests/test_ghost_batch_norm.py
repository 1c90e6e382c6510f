import copy
import itertools

import models
import pytest
import torch
from conftest import exhaust, make_trial, refused, run_trial
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from orchestrator.training.loop import train_on_ranks
from orchestrator.workloads import ghost_batch_norm
from orchestrator.workloads.ghost_batch_norm import (
    GhostBatchNorm,
    GhostBatchNorm1d,
    GhostBatchNorm2d,
    commit,
    discard,
    ghost_norms,
    ghosts,
    running_statistics,
    with_ghosts,
)

CHANNELS = 3


@pytest.fixture(params=["looped", "folded"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the algorithms of the CPU and of CUDA, both on the CPU."""
    folded_on = {"cpu"} if request.param == "folded" else set()
    monkeypatch.setattr(ghost_batch_norm, "FOLDED_ON", folded_on)


def make(kind: type[nn.Module], **options: object) -> nn.Module:
    """Makes a norm in float64 with random weights and running statistics."""
    norm = kind(CHANNELS, momentum=0.3, dtype=torch.float64, **options)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            if tensor is not None:
                tensor.copy_(torch.rand(CHANNELS, generator=generator) + 0.5)
    return norm


def make_input(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def pieces(size: int, ghost_size: int) -> list[slice]:
    starts = [i * ghost_size for i in range(ghosts(size, ghost_size))]
    return [slice(a, b) for a, b in itertools.pairwise([*starts, size])]


def run(norm: nn.Module, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the outputs, and the gradients of the inputs, the weight and the bias."""
    leaves = [input.detach().requires_grad_() for input in inputs]
    norm.zero_grad()
    outputs = [norm(leaf) for leaf in leaves]
    together = torch.cat(outputs)
    (together * torch.linspace(0, 1, together.numel()).view_as(together).sin()).sum().backward()
    gradients = torch.cat([leaf.grad for leaf in leaves])
    return together.detach(), gradients, norm.weight.grad, norm.bias.grad


@given(st.integers(0, 300), st.integers(2, 40))
def test_ghosts_are_cut_as_stated(size: int, ghost_size: int) -> None:
    full, rest = divmod(size, ghost_size)
    stated = full + (2 * rest >= ghost_size)
    assert ghosts(size, ghost_size) == (max(stated, 1) if size else 0)


@pytest.mark.parametrize("size", [2, 4, 5, 6, 7, 12, 13, 14])
@pytest.mark.parametrize("space", [(), (5,), (2, 3)])
@pytest.mark.usefixtures("both_ways")
def test_every_ghost_is_a_batch_to_torch(size: int, space: tuple[int, ...]) -> None:
    theirs = nn.BatchNorm2d if len(space) == 2 else nn.BatchNorm1d
    norm = make(ghost_batch_norm.COUNTERPARTS[theirs], ghost_size=4)
    input = make_input(size, CHANNELS, *space)
    plain, each = make(theirs), [make(theirs) for _ in pieces(size, 4)]
    plain_run = run(plain, *(input[piece] for piece in pieces(size, 4)))
    for got, expected in zip(run(norm, input), plain_run, strict=True):
        torch.testing.assert_close(got, expected)
    for one, piece in zip(each, pieces(size, 4), strict=True):
        one(input[piece])
    for name in ("running_mean", "running_var"):
        # The exponential average is linear: averaged over ghosts after it is the same as before.
        mean = torch.stack([getattr(one, name) for one in each]).mean(0)
        torch.testing.assert_close(getattr(norm, name), mean)
    assert norm.num_batches_tracked == 1


@pytest.mark.usefixtures("both_ways")
def test_channels_last_stays_so() -> None:
    norm = make(GhostBatchNorm2d, ghost_size=4)
    input = make_input(14, CHANNELS, 4, 5)
    output = norm(input.contiguous(memory_format=torch.channels_last))
    assert output.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(output, norm(input), check_stride=False)
    assert norm(input).is_contiguous()


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 4))
def test_ranks_and_micro_batches_add_up_to_the_batch(
    size: int, ranks: int, ghosts_at_once: int
) -> None:
    """Three steps are taken. A rank has whole ghosts, and computes `ghosts_at_once` of them at a
    time."""
    whole = make(GhostBatchNorm1d, ghost_size=4)
    copies = [copy.deepcopy(whole) for _ in range(ranks)]
    cuts = pieces(size, 4)
    for step in range(3):
        input = make_input(size, CHANNELS) + step
        whole(input)
        for rank, norm in enumerate(copies):
            norm.defer(len(cuts))
            own = cuts[rank * len(cuts) // ranks : (rank + 1) * len(cuts) // ranks]
            for first in range(0, len(own), ghosts_at_once):
                chunk = own[first : first + ghosts_at_once]
                norm(input[chunk[0].start : chunk[-1].stop])
        pending = [norm.pending.flatten() for norm in copies if norm.pending is not None]
        for norm in copies:
            commit([norm], lambda own, pending=pending: sum(pending))
    for norm in copies:
        torch.testing.assert_close(running_statistics([norm]), running_statistics([whole]))
    assert all(norm.num_batches_tracked == 3 for norm in copies)


def test_a_discarded_step_leaves_no_trace() -> None:
    norm = make(GhostBatchNorm1d, ghost_size=4)
    once = copy.deepcopy(norm)
    norm.defer(2)
    norm(make_input(8, CHANNELS) * 7)
    discard([norm])
    norm(make_input(8, CHANNELS))
    commit([norm])
    once(make_input(8, CHANNELS))
    assert all(map(torch.equal, running_statistics([norm]), running_statistics([once])))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.usefixtures("both_ways")
def test_a_ghost_of_one_example_is_normalised_to_the_bias(size: int) -> None:
    norm = make(GhostBatchNorm1d, ghost_size=2)
    before, input = norm.running_var.clone(), make_input(size, CHANNELS)
    output, gradient, *gradients = run(norm, input)
    torch.testing.assert_close(output[-1], norm.bias.detach())
    torch.testing.assert_close(gradient[-1], torch.zeros_like(gradient[-1]))
    assert all(map(torch.isfinite, torch.cat(gradients)))
    variance = input[:2].var(dim=0) / 2 if size == 3 else 0
    torch.testing.assert_close(norm.running_var, 0.7 * before + 0.3 * variance)


@pytest.mark.parametrize("total", [None, 5])
def test_no_examples_give_zero_gradients(total: int | None) -> None:
    norm = make(GhostBatchNorm2d, ghost_size=4)
    before = copy.deepcopy(norm.state_dict())
    norm.defer(total)
    output, _, *gradients = run(norm, make_input(0, CHANNELS, 2, 2))
    assert output.shape == (0, CHANNELS, 2, 2)
    assert all(torch.equal(gradient, torch.zeros(CHANNELS)) for gradient in gradients)
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())


@pytest.mark.usefixtures("both_ways")
def test_bfloat16_and_no_parameters() -> None:
    norm = GhostBatchNorm2d(CHANNELS, affine=False, ghost_size=4)
    input = make_input(12, CHANNELS, 2, 2).float()
    with torch.autocast("cpu", torch.bfloat16):
        output = norm(input.bfloat16())
    assert output.dtype == torch.bfloat16
    assert norm.running_mean.dtype == torch.float32
    torch.testing.assert_close(output.float(), norm(input), atol=0.03, rtol=0)


def test_a_frozen_norm_keeps_its_statistics() -> None:
    norms = [make(GhostBatchNorm1d, ghost_size=4) for _ in range(2)]
    before = copy.deepcopy(norms[0].eval().state_dict())
    for norm in norms:
        norm.defer(2)
        norm(make_input(8, CHANNELS))
    commit(norms)
    assert [norm.num_batches_tracked for norm in norms] == [0, 1]
    torch.testing.assert_close(norms[0].state_dict(), before, rtol=0, atol=0)


def test_with_ghosts_replaces_norms_and_nothing_else() -> None:
    images = torch.randn(8, 1, 6, 6)
    convolutions = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, eps=0.1), nn.ReLU())
    plain = nn.Sequential(convolutions, nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5))
    plain(images)
    model = with_ghosts(copy.deepcopy(plain), ghost_size=4)
    assert [type(norm) for norm in ghost_norms(model)] == [GhostBatchNorm2d, GhostBatchNorm1d]
    assert list(model.state_dict()) == list(plain.state_dict())
    model.load_state_dict(plain.state_dict())
    assert torch.equal(model.eval()(images), plain.eval()(images))
    assert isinstance(with_ghosts(nn.BatchNorm1d(3), 4), GhostBatchNorm)


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_other_batch_norms_are_refused(kind: type[nn.Module]) -> None:
    model = nn.Sequential(GhostBatchNorm2d(3, ghost_size=4), nn.Sequential(kind(3)))
    with refused("needs-ghosts", "'1.0'", kind.__name__, "with_ghosts"):
        ghost_norms(model)
    model[1].eval()
    assert ghost_norms(model) == [model[0]]
    model[1][0].track_running_stats = False
    with refused("needs-ghosts", "'1.0'"):
        ghost_norms(model)


def test_settings_that_cannot_be_are_refused() -> None:
    with refused("wrong-value", "[4, 8]"):
        ghost_norms(nn.ModuleList(GhostBatchNorm1d(3, ghost_size=size) for size in (8, 4)))
    with refused("wrong-value", "`ghost_size`", 2, 1):
        GhostBatchNorm1d(3, ghost_size=1)
    with refused("wrong-value", "`momentum`", None):
        with_ghosts(nn.BatchNorm1d(3, momentum=None), 4)
    with refused("wrong-value", "`track_running_stats`", False):
        with_ghosts(nn.BatchNorm1d(3, track_running_stats=False), 4)


@pytest.mark.dear
def test_buffers_that_depend_on_the_division_of_a_batch_are_refused() -> None:
    trial = make_trial(models.name(models.Following), budget_steps=4)
    run_trial(trial)
    with refused("unusable", "Sequential", "1.running_mean"):
        run_trial(trial, micro_batch=9)
    with refused("unusable", "Sequential", "1.running_mean"):
        exhaust(train_on_ranks(trial, 2))


def test_norms_must_see_every_example_once() -> None:
    norms = [GhostBatchNorm1d(3, ghost_size=4) for _ in range(2)]
    for norm in norms:
        norm.defer(2)
    norms[0](torch.randn(8, 3))
    with refused("ghost-count", 2, [0, 2]):
        commit(norms)
    for _ in range(2):
        norms[1](torch.randn(8, 3))
    with refused("ghost-count", [4]):
        commit(norms[1:])


class NormAndActivation(nn.BatchNorm2d):
    """A norm that includes an activation, as in image libraries."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.relu(super().forward(input)) + 1


def test_a_norm_that_does_more_keeps_doing_it() -> None:
    plain, more = (
        with_ghosts(nn.Sequential(kind(3)), ghost_size=4)
        for kind in (nn.BatchNorm2d, NormAndActivation)
    )
    torch.manual_seed(0)
    for _ in range(2):
        inputs = torch.randn(11, 3, 2, 2)
        assert torch.allclose(more(inputs), torch.relu(plain(inputs)) + 1, atol=1e-6)
    for one, other in zip(plain.buffers(), more.buffers(), strict=True):
        assert torch.allclose(one, other)
    assert len(ghost_norms(more)) == 1
    assert torch.allclose(more.eval()(inputs), torch.relu(plain.eval()(inputs)) + 1, atol=1e-6)
