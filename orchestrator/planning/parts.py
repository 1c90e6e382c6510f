"""What the parts of a file that describes a run have in common: bounds, names, strictness."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

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

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _no_switch(cls, value: Any, taken_as: Any) -> Any:
        """Refuses `true` and `false` in place of a number, for which they would be 1 and 0."""
        taken = taken_as(value)
        if isinstance(value, bool) and not isinstance(taken, bool):
            raise ValueError("input should be a number")
        return taken


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


def _size(size: Any) -> Any:
    if size != "full" and (type(size) not in (int, float) or size % 1 or not 1 <= size <= MANY):
        raise ValueError(f"each batch size must be a whole number from 1 to {MANY:,}, or `full`")
    return size


Size = Annotated[Annotated[int, Field(ge=1, le=MANY)] | Literal["full"], BeforeValidator(_size)]
"""A batch size; `full` stands for the whole training set."""
