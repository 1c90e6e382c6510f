"""Sorts the parameters of a model into the groups that an optimizer treats differently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from orchestrator.records import BadInput, unknown, wrong_value
from orchestrator.workloads import Group

HIDDEN = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase, nn.MultiheadAttention)
"""Modules whose matrices Muon and its kin orthogonalise, with Hugging Face's Conv1D, unless such a
matrix is the output head or also an embedding."""

Losses = Callable[[], Tensor]
"""Function that returns the losses of a few examples, with their graph."""


def sorted_parameters(
    model: nn.Module,
    groups: Sequence[Group],
    rates: Sequence[float | None],
    decays: Sequence[float | None],
    losses: Losses | None = None,
) -> list[dict[str, Any]]:
    """Returns torch's parameter groups. `rates` and `decays` are the learning rates and weight
    decays of hidden matrices, then of all other parameters; None: the optimizer has none. They are
    equal unless there are `losses`, which an optimizer like Muon needs to find the output head.

    Biases and the scales of norms are vectors; shrinking them regularises nothing. Each group costs
    a call per step, so parameters that are treated alike are in one group."""
    named = dict(model.named_parameters(remove_duplicate=False))
    chosen = _chosen(groups, named)
    hidden = _hidden(model, losses()) if losses else set()
    found: dict[tuple[Any, ...], list[Tensor]] = {}
    for parameter in model.parameters():
        group = chosen.get(id(parameter), Group(parameters=()))
        is_hidden = id(parameter) in hidden if group.hidden is None else group.hidden
        rate, decay = rates[not is_hidden], decays[not is_hidden]
        if rate is None and group.learning_rate != 1:
            problem = "`learning_rate` in `groups` has no effect on this optimizer. Leave it out."
            raise BadInput(problem, code="no-effect")
        decay = decay and (decay * group.weight_decay if parameter.ndim > 1 else 0.0)
        key = (is_hidden if losses else None, rate and rate * group.learning_rate, decay)
        found.setdefault(key, []).append(parameter)
    names = ("use_muon", "lr", "weight_decay")
    return [
        {"params": members, **{n: v for n, v in zip(names, key, strict=True) if v is not None}}
        for key, members in found.items()
    ]


def _chosen(groups: Sequence[Group], named: dict[str, nn.Parameter]) -> dict[int, Group]:
    """Returns the group of each parameter that is in one, by the parameter's id."""
    chosen: dict[int, Group] = {}
    for group in groups:
        for name in group.parameters:
            if name not in named:
                raise unknown("parameter in `groups`:", name, named)
            if id(named[name]) in chosen:
                problem = f"`groups` must name a parameter once, but {name!r} is named twice."
                raise BadInput(problem, code="given-twice")
            if group.hidden and named[name].ndim < 2:
                raise wrong_value("A parameter with hidden=True in `groups`", "no vector", name)
            chosen[id(named[name])] = group
    return chosen


def _hidden(model: nn.Module, losses: Tensor) -> set[int]:
    """Returns the ids of the hidden matrices. Embeddings, tables of positions (parameters outside
    of `HIDDEN`) and the output head are better optimized by AdamW (Jordan et al. 2024,
    kellerjordan.github.io/posts/muon)."""
    inside, outside = set[int](), {id(matrix) for matrix in _heads(losses)}
    for module in model.modules():
        matrices = {id(p) for p in module.parameters(recurse=False) if p.ndim > 1}
        if isinstance(module, HIDDEN) or type(module).__name__ == "Conv1D":
            inside |= matrices
        else:
            outside |= matrices
    return inside - outside


def _heads(losses: Tensor) -> list[Tensor]:
    """Returns the matrices that are nearest to the losses in their graph: the output head, or an
    embedding that is also the head. No name and no order of attributes matters."""
    nodes: set[Any] = {losses.grad_fn}
    seen: set[Any] = {None}
    while nodes := nodes - seen:
        reached = [getattr(node, "variable", None) for node in nodes]
        if matrices := [tensor for tensor in reached if tensor is not None and tensor.ndim > 1]:
            return matrices
        seen |= nodes
        nodes = {inner for node in nodes for inner, _ in node.next_functions}
    return []
