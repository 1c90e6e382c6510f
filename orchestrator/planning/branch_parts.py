"""What is asked of branches: from where, how large, at which learning rates, how long."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from orchestrator.planning.parts import MANY, MOST_ITEMS, MOST_STEPS, POWERS, Part, Text
from orchestrator.search import MOST_POINTS

EARLIEST, LATEST = 1 / 64, 1 / 2
"""Of a trunk: between these, points are spread."""


class Rates(Part):
    """Multiples of the trunk's learning rate among which a larger batch finds its best."""

    rules: list[Literal["constant", "sqrt", "linear"]] = Field(
        default=["sqrt", "linear"], min_length=1, max_length=3
    )
    multiples: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default=[0.5, 1.0, 2.0], min_length=1, max_length=MOST_ITEMS
    )
    """Of what each rule says; at the trunk's own batch size they are all there is."""

    def at(self, factor: int) -> list[float]:
        """From the lowest up, each once."""
        found = {
            multiple * factor ** POWERS[rule] for rule in self.rules for multiple in self.multiples
        }
        return sorted(found)


class Length(Part):
    """Of branches, in examples: doubled until they say the same twice."""

    examples: int | None = Field(default=None, ge=1, le=MANY**2)
    """The first; None: sixteen batches of the largest size."""
    at_most: int | None = Field(default=None, ge=1, le=MANY**2)
    """None: eight times the first."""
    evaluations: int = Field(default=8, ge=4, le=1000)
    """Of the shortest; longer ones have as many more."""


class Spread(Part):
    """So many points along the trunk, in equal distances."""

    count: int = Field(ge=1, le=MOST_ITEMS)
    spacing: Literal["log", "loss"] = "log"
    """Equal in the logarithm of examples, or in the loss, where a run tells that."""


Points = Annotated[
    Annotated[Spread, Tag("spread")]
    | Annotated[
        list[Annotated[int, Field(ge=1, le=MOST_STEPS)]],
        Field(min_length=1, max_length=MOST_ITEMS),
        Tag("list"),
    ],
    Discriminator(
        lambda given: "list" if isinstance(given, list) else "spread",
    ),
]
"""Along a trunk: spread, or its steps."""


class Branches(Part):
    """What becomes of a trunk, which is the only recipe of its sweep."""

    points: Points
    factors: list[Annotated[int, Field(ge=1, le=MANY)]] = Field(
        default=[1, 2, 4, 8, 16], min_length=2, max_length=MOST_ITEMS
    )
    """Batch sizes over the trunk's."""
    learning_rate: Rates = Rates()
    seeds: int = Field(default=8, ge=3, le=MOST_POINTS)
    """Orders of examples from a point on."""
    length: Length = Length()
    loss: Text = "val/loss"
    """The metric that branches are compared by; less is better."""
    confirm: bool = False
    """Whether to train with the schedules that follow, and with the constant batch, to the end."""
    trunk_seed: int | None = Field(default=None, ge=0, le=2**63 - 1)
    """None: as of any trial of this sweep."""
