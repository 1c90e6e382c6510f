"""The key `scale` of a sweep file: a workload at several sizes of whatever has a number."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, PositiveInt, TypeAdapter

from orchestrator.planning.parts import MANY, MOST_ITEMS, Part
from orchestrator.programs.commands import OF_TRIAL, PLACEHOLDER
from orchestrator.records import LARGEST, BadInput, wrong_value

EXAMPLES, DATA, OPTION = "examples", "data", "train_examples"
"""The variable of the training set's size, its name in `scales`, the option that sets it."""


def _plain(value: float) -> int | float:
    return int(value) if value == int(value) and value <= MANY**2 else value


Number = Annotated[float, Field(gt=0, le=LARGEST), AfterValidator(_plain)]

FEW = Field(min_length=1, max_length=MOST_ITEMS)


class Scale(Part):
    """A workload at several sizes: one for each combination of the values."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[list[Number], FEW]] = Field(init=False)

    workload: str | dict[str, Any] = Field(examples=["mine.py:GPT?width={width}"])
    """A workload with a placeholder in braces for each variable, in its options or its command.
    Beside it, each variable has the list of its values: `width: [64, 128, 256]`."""
    examples: Annotated[list[PositiveInt], FEW] | None = Field(
        default=None, examples=[[10000, 40000]]
    )
    """Sizes of the training set. A program needs a placeholder for it, a class does not."""


def expanded(given: Any) -> tuple[list[Any], dict[str, dict[str, float]]]:
    """The workloads that `scale` stands for, as listed, and workload -> variable -> its value."""
    if not isinstance(given, dict):
        raise wrong_value("`scale`", "{workload: NAME, VARIABLE: [...]}", given)
    scale = TypeAdapter(dict[str, Scale]).validate_python({"scale": given})["scale"]
    entry, sizes = scale.workload, {**(scale.model_extra or {})}
    if scale.examples is not None:
        sizes[EXAMPLES] = scale.examples
        if isinstance(entry, str) and f"{{{EXAMPLES}}}" not in entry:
            entry += f"{'&' if '?' in entry else '?'}{OPTION}={{{EXAMPLES}}}"
        if isinstance(entry, dict) and EXAMPLES in entry:
            raise BadInput("`examples` is in both `scale` and its workload", code="given-twice")
    text = json.dumps(entry, default=str)
    _check(sizes, PLACEHOLDER.findall(text))
    workloads, scales = [], {}
    for values in product(*sizes.values()):
        at = dict(zip(sizes, values, strict=True))
        name = one = _filled(text, at)
        if isinstance(one, dict):
            options = "&".join(f"{key}={size!r}" for key, size in at.items())
            name = f"{one.get('name') or ''}?{options}"
            one |= {"name": name, **({EXAMPLES: at[EXAMPLES]} if EXAMPLES in at else {})}
        workloads.append(one)
        scales[name] = {DATA if key == EXAMPLES else key: size for key, size in at.items()}
    return workloads, scales


def _filled(text: str, at: Mapping[str, float]) -> Any:
    """What the text says in JSON with these placeholders filled; others are those of trials."""
    return json.loads(PLACEHOLDER.sub(lambda of: str(at.get(of[1], of[0])), text))


def _check(sizes: Mapping[str, Sequence[float]], found: Collection[str]) -> None:
    """Raises `BadInput` for variables that change nothing or mean something else."""
    if (count := math.prod(map(len, sizes.values()))) > MOST_ITEMS:
        raise BadInput(
            f"scale: at most {MOST_ITEMS} workloads, but it comes to {count:,}: give fewer values",
            code="too-many",
        )
    for name in sizes:
        if name not in found:
            raise BadInput(
                f"scale: {name!r} makes no difference: write {{{name}}} into the workload, as an "
                f"option of a class or an argument of a command",
                code="no-effect",
            )
        if name in OF_TRIAL or (name == DATA and EXAMPLES in sizes):
            raise BadInput(f"scale: {name!r} is something else here: rename it", code="given-twice")
