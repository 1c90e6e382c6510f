"""What the parts of a file that describes a run have in common: bounds, names, strictness."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from orchestrator.records import CONTROLS, MANY, BadInput
from orchestrator.search import LONGEST_TEXT

POWERS = {"constant": 0.0, "sqrt": 0.5, "linear": 1.0}
"""Rule -> the power of the batch size with which the learning rate grows."""

MOST_ITEMS = 200
"""The most workloads, recipes, goals or batch sizes of a file; one published study has 35."""

LONGEST_NAME = 230
"""Bytes: a folder `workload=NAME` may have 255, and temporary names are a few longer."""


class Part(BaseModel):
    """A mapping in such a file. The docstrings under its fields are the descriptions of its keys:
    the schemas and docs/sweep-file.md are made of them."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=False, use_attribute_docstrings=True
    )


def _folder(name: str) -> str:
    """Refuses a name that no folder of a run can have."""
    if CONTROLS.search(name):
        raise BadInput("a name must not hold control characters", code="wrong-name")
    if name[:1] in {*"=+-@"}:
        raise BadInput(
            "a name must not begin with = + - or @: spreadsheets would take it for a formula",
            code="wrong-name",
        )
    if (length := len(quote(name, safe=""))) > LONGEST_NAME:
        raise BadInput(
            f"a name must have at most {LONGEST_NAME} bytes once it is percent-encoded for its "
            f"folder (a / takes 3, an ä 6, a 大 9), but this one has {length:,}: shorten it",
            code="too-large",
        )
    return name


Text = Annotated[str, Field(max_length=LONGEST_TEXT)]

FolderName = Annotated[str, Field(min_length=1), AfterValidator(_folder)]


def _size(size: int | str) -> int | str:
    if size != "full" and (isinstance(size, (str, bool)) or not 1 <= size <= MANY):
        raise ValueError(f"each batch size must be a whole number from 1 to {MANY:,}, or `full`")
    return size


Size = Annotated[
    int | str,
    AfterValidator(_size),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MANY}, {"const": "full"}]}
    ),
]
"""A batch size; `full` stands for the whole training set."""
