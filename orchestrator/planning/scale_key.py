"""The key `scale` of a sweep file: a workload at several sizes of its model, its data, or anything
else that has a number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter

from orchestrator.planning.parts import MANY, MOST_ITEMS, Part
from orchestrator.programs.commands import OF_TRIAL, PLACEHOLDER
from orchestrator.records import LARGEST, BadInput, wrong_value

EXAMPLES, DATA, OPTION = "examples", "data", "train_examples"
"""The variable that is the size of the training set, what `scales` calls it, and the option of a
class that sets it."""


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST:
        raise wrong_value("a size on a scale", "a number above 0", value)
    return int(value) if value == int(value) and value <= MANY**2 else value


Number = Annotated[
    Annotated[int, Field(gt=0)] | Annotated[float, Field(gt=0)], BeforeValidator(_number)
]

Whole = Annotated[int, Field(ge=1, le=MANY**2), BeforeValidator(_number)]

FEW = Field(min_length=1, max_length=MOST_ITEMS)


class Scale(Part):
    """A workload at several sizes: one for each combination of the values."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[list[Number], FEW]] = Field(init=False)

    workload: Any = Field(examples=["mine.py:GPT?width={width}"])
    """A workload with a placeholder in braces for each variable, in its options or its command.
    Beside it, each variable has the list of its values: `width: [64, 128, 256]`."""
    examples: Annotated[list[Whole], FEW] | None = Field(default=None, examples=[[10000, 40000]])
    """Sizes of the training set. A program needs a placeholder for it, a class does not."""


def expanded(given: Any) -> tuple[list[Any], dict[str, dict[str, float]]]:
    """The workloads that a document's `scale` stands for, as a document lists them; and workload ->
    variable -> its value there."""
    if not isinstance(given, dict) or not isinstance(given.get("workload", ""), str | dict):
        raise wrong_value("`scale`", "{workload: NAME, VARIABLE: [...]}", given)
    scale = TypeAdapter(dict[str, Scale]).validate_python({"scale": given})["scale"]
    entry, sizes = scale.workload, {**(scale.model_extra or {})}
    if scale.examples is not None:
        sizes[EXAMPLES] = scale.examples
    text = entry if isinstance(entry, str) else _text({**entry, "name": ""})
    _check(sizes, text, needed={*sizes} - ({EXAMPLES} if isinstance(entry, str) else set()))
    if isinstance(entry, dict) and EXAMPLES in sizes and EXAMPLES in entry:
        raise BadInput("`examples` is in both `scale` and its workload", code="given-twice")
    workloads, scales = [], {}
    for values in product(*sizes.values()):
        at = dict(zip(sizes, values, strict=True))
        one = _filled(entry, at)
        options = "&".join(f"{key}={size!r}" for key, size in at.items())
        if isinstance(entry, dict):
            name = one["name"] = f"{entry.get('name') or ''}?{options}"
            one |= {EXAMPLES: at[EXAMPLES]} if EXAMPLES in at else {}
        else:
            if EXAMPLES in at and f"{{{EXAMPLES}}}" not in entry:
                one += f"{'&' if '?' in one else '?'}{OPTION}={at[EXAMPLES]!r}"
            name = one
        workloads.append(one)
        scales[name] = {DATA if key == EXAMPLES else key: size for key, size in at.items()}
    return workloads, scales


def _check(sizes: Mapping[str, list[Any]], text: str, needed: set[str]) -> None:
    """Raises `BadInput` for variables that change nothing or mean something else."""
    if not sizes or (count := math.prod(map(len, sizes.values()))) > MOST_ITEMS:
        raise BadInput(
            f"scale: it comes to at most {MOST_ITEMS} workloads, but this one to {count:,}: give "
            f"fewer values"
            if sizes
            else "scale: it needs a variable with its values, such as `width: [64, 128, 256]`",
            code="too-many" if sizes else "missing-key",
        )
    found = {*PLACEHOLDER.findall(text)}
    if missing := sorted(needed - found):
        raise BadInput(
            f"scale: {missing[0]!r} makes no difference: write {{{missing[0]}}} into the workload, "
            f"as an option of a class or an argument of a command",
            code="no-effect",
        )
    for name, values in sizes.items():
        if name in OF_TRIAL or (name == DATA and EXAMPLES in sizes):
            raise BadInput(f"scale: {name!r} is something else here: rename it", code="given-twice")
        if len({*values}) < len(values):
            raise BadInput(f"scale: {name!r} has a value twice: give it once", code="given-twice")


def _text(value: Any) -> str:
    """All text within the value."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value if isinstance(value, str) else " ".join(map(_text, parts))


def _filled(value: Any, at: Mapping[str, float]) -> Any:
    """The value with numbers in place of their placeholders; the other ones are those of trials."""
    if isinstance(value, dict):
        return {key: _filled(each, at) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, at) for each in value]
    if not isinstance(value, str):
        return value
    return PLACEHOLDER.sub(lambda of: repr(at[of[1]]) if of[1] in at else of[0], value)
