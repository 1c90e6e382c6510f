"""A tape gives the same bits as its function, for other numbers, too. A function that can't be
repeated is refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from orchestrator.training.tape import Taped, Unrepeatable, record

Function = Callable[[list[Tensor]], list[Tensor]]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layer(inputs: list[Tensor]) -> list[Tensor]:
    """Returns losses and the gradients of weights, computed with functions of every kind."""
    examples, given = inputs
    weights = given.detach().requires_grad_()
    hidden = functional.gelu(torch.bmm(examples, weights)).sigmoid() * torch.ones(3).cumsum(0)[2]
    total = torch.zeros_like(hidden)
    total.add_(hidden)
    losses = functional.silu(total.tanh() * 2, inplace=True).sum((1, 2))
    (gradient,) = torch.autograd.grad(losses, [weights], torch.ones_like(losses))
    return [losses.detach(), gradient]


def test_a_tape_gives_what_the_function_gives() -> None:
    tape = record(layer, [numbers(3, 5, 7), numbers(3, 7, 7)])
    others = [numbers(3, 5, 7, seed=1), numbers(3, 7, 7, seed=2)]
    for repeated, expected in zip(tape(others), layer(others), strict=True):
        torch.testing.assert_close(repeated, expected)


@pytest.mark.parametrize("some", [[0, 1], [2, 0], [1, 2]])
def test_bits_do_not_depend_on_the_place(some: list[int]) -> None:
    """There are 3 x 35 elements, so whole vectors leave some elements over at the end."""
    everything = [numbers(3, 5, 7), numbers(3, 7, 7)]
    part = [whole[some] for whole in everything]
    few = record(layer, part)(part)
    for whole, of_some in zip(record(layer, everything)(everything), few, strict=True):
        assert torch.equal(whole[some], of_some)


def test_other_shapes_are_recorded_anew() -> None:
    taped = Taped(lambda inputs: [inputs[0].reshape(-1) * len(inputs[0])])
    for size in (2, 3, 2, 3):
        assert torch.equal(taped([torch.ones(size, 2)])[0], torch.full((2 * size,), float(size)))


STATE = torch.zeros(3)

REFUSED: dict[str, tuple[Function, str]] = {
    "random": (lambda inputs: [inputs[0] + torch.rand(3)], "draws random numbers"),
    "a look": (lambda inputs: [inputs[0] * float(inputs[0].sum())], "reads the value"),
    "a memory": (lambda inputs: [STATE.add_(inputs[0])], "may change a constant"),
    "a change": (lambda inputs: [inputs[0].add_(1)], "changes its inputs"),
    "numbers by way of Python": (
        lambda inputs: [inputs[0] + torch.tensor(inputs[0].tolist())],
        "give other bits",
    ),
}


@pytest.mark.parametrize(("function", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_would_not_be_the_same_again_is_refused(function: Function, reason: str) -> None:
    with pytest.raises(Unrepeatable, match=reason):
        record(function, [numbers(3)])


def test_a_recording_that_fails_tells_no_operations() -> None:
    """What a stack may do depends on them, and stacks share what they have recorded."""
    few = True

    def function(inputs: list[Tensor]) -> list[Tensor]:
        doubled = inputs[0] * 2
        if few:
            raise RuntimeError("not enough memory")
        return [doubled.exp()]

    taped = Taped(function)
    with pytest.raises(RuntimeError, match="memory"):
        taped([numbers(3)])
    assert not taped.operations
    few = False
    assert torch.equal(taped([numbers(3)])[0], (numbers(3) * 2).exp())
    assert torch.ops.aten.exp.default in taped.operations
