"""Sorts the parameters of a model into the groups that an optimizer treats differently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from orchestrator.records import BadInput, unknown, wrong_value
from orchestrator.workloads import Group

HIDDEN = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase, nn.MultiheadAttention)
"""Modules whose matrices Muon orthogonalises, beside Hugging Face's Conv1D."""

Losses = Callable[[], Tensor]
"""Function that returns the loss of an example, with its graph."""


def sorted_parameters(
    model: nn.Module,
    groups: Sequence[Group],
    rates: Sequence[float | None],
    decays: Sequence[float | None],
    losses: Losses | None = None,
) -> list[dict[str, Any]]:
    """Returns torch's parameter groups. `rates` and `decays` are the learning rate and weight decay
    of hidden matrices, then of the rest; None: the optimizer has none. Muon needs the `losses`."""
    if not (isinstance(groups, Sequence) and all(isinstance(each, Group) for each in groups)):
        raise BadInput(f"`groups` must be a list of Group, not {groups!r}.", code="wrong-result")
    named = dict(model.named_parameters(remove_duplicate=False))
    chosen: dict[int, Group] = {}
    for named_group, name in ((each, name) for each in groups for name in each.parameters):
        if name not in named:
            raise unknown("parameter in `groups`:", name, named)
        if id(named[name]) in chosen or (named_group.hidden and named[name].ndim < 2):
            rule = "named once, and no vector if it is hidden"
            raise wrong_value("A parameter in `groups`", rule, name)
        chosen[id(named[name])] = named_group
    hidden = _hidden(model, losses()) if losses else set()
    # Each group costs a call per step, so parameters that are treated alike are in one.
    found: dict[tuple[Any, ...], list[Tensor]] = {}
    for parameter in model.parameters():
        group = chosen.get(id(parameter), Group(parameters=()))
        is_hidden = id(parameter) in hidden if group.hidden is None else group.hidden
        rate, decay = rates[not is_hidden], decays[not is_hidden]
        if rate is None and group.learning_rate != 1:
            problem = "`learning_rate` in `groups` has no effect on this optimizer. Leave it out."
            raise BadInput(problem, code="no-effect")
        # Biases and the scales of norms are vectors; shrinking them regularises nothing.
        decay = decay and (decay * group.weight_decay if parameter.ndim > 1 else 0.0)
        key = (is_hidden if losses else None, rate and rate * group.learning_rate, decay)
        found.setdefault(key, []).append(parameter)
    names = ("use_muon", "lr", "weight_decay")
    return [
        {"params": members, **{n: v for n, v in zip(names, key, strict=True) if v is not None}}
        for key, members in found.items()
    ]


def _hidden(model: nn.Module, losses: Tensor) -> set[int]:
    """Returns the ids of the hidden matrices: those of `HIDDEN` except the output head. Head,
    embeddings and tables of positions are better optimized by AdamW (Jordan et al. 2024)."""
    # The head is the matrix nearest to the loss, whatever its name and the order of attributes.
    nodes: set[Any] = {losses.grad_fn}
    seen: set[Any] = {None}
    inside, outside = set[int](), set[int]()
    while (nodes := nodes - seen) and not outside:
        reached = [node.variable for node in nodes if hasattr(node, "variable")]
        outside = {id(parameter) for parameter in reached if parameter.ndim > 1}
        seen |= nodes
        nodes = {inner for node in nodes for inner, _ in node.next_functions}
    for module in model.modules():
        hides = isinstance(module, HIDDEN) or type(module).__name__ == "Conv1D"
        matrices = {id(p) for p in module.parameters(recurse=False) if p.ndim > 1}
        (inside if hides else outside).update(matrices)
    return inside - outside
