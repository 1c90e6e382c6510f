"""What is asked of branches: from where, how large, at which learning rates, how long."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from orchestrator.planning.parts import MANY, MOST_ITEMS, POWERS, Part, Text
from orchestrator.records.roles import COURSE, FREE, SEARCH, STUDIES

EARLIEST, LATEST = 1 / 64, 1 / 2
"""Of a trunk: between these, points are spread."""

LOWER, HIGHER = 20, 12
"""How many lower and higher learning rates are tried at most, beyond those that were asked for."""


class Rates(Part):
    """Multiples of the trunk's learning rate among which a larger batch finds its best."""

    rules: list[Literal["constant", "sqrt", "linear"]] = Field(
        default=["sqrt", "linear"], min_length=1, max_length=3, examples=[["sqrt"]]
    )
    """How the learning rate follows the batch size at factor k: `constant` keeps the trunk's,
    `sqrt` multiplies it by the square root of k, `linear` by k."""
    multiples: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default=[0.5, 1.0, 2.0], min_length=1, max_length=MOST_ITEMS, examples=[[0.7, 1, 1.4]]
    )
    """Multiples of the learning rate that each rule gives. At the trunk's own batch size all rules
    give the same, so only the multiples differ there. Further ones are tried beside the best, until
    neighbours on both sides are worse and no further away than a factor of 1.2. With one, none are
    tried beside the trunk's own rate at factor 1, so larger batches may cost more than is said."""

    def at(self, factor: int) -> list[float]:
        """From the lowest up, each once."""
        found = {
            multiple * factor ** POWERS[rule] for rule in self.rules for multiple in self.multiples
        }
        return sorted(found)

    def beside(self, factor: int) -> list[float]:
        """Rates that are tried where the best lies next to them: between those asked for, lower and
        higher ones, each at most the fourth root of 2 from the next. None beside a single one."""
        asked = self.at(factor)
        if len(asked) == 1:
            return []
        found = [asked[0] / 2 ** (n / 4) for n in range(1, LOWER + 1)]
        found += [asked[-1] * 2 ** (n / 4) for n in range(1, HIGHER + 1)]
        for low, high in pairwise(asked):
            parts = math.ceil(4 * math.log2(high / low) - 1e-9)
            found += [low * (high / low) ** (n / parts) for n in range(1, parts)]
        return found


class Length(Part):
    """The length of branches. It is doubled until three answers in a row agree."""

    examples: int | None = Field(default=None, ge=1, le=MANY**2, examples=[2048])
    """Examples of the shortest branches. Default: 16 batches of the largest size."""
    at_most: int | None = Field(default=None, ge=1, le=MANY**2, examples=[16384])
    """Examples of the longest branches. Default: eight times the shortest."""
    evaluations: int = Field(default=8, ge=4, le=1000, examples=[16])
    """How often the shortest branches are evaluated; longer ones are evaluated proportionally more
    often. More evaluations tell more, and cost more."""


class Spread(Part):
    """A number of points along the trunk, at equal distances in the logarithm of examples."""

    count: int = Field(ge=1, le=MOST_ITEMS, examples=[4])
    """How many points."""


Points = Annotated[
    Annotated[Spread, Tag("spread")]
    | Annotated[
        list[Annotated[int, Field(ge=1, le=MANY)]],
        Field(min_length=1, max_length=MOST_ITEMS),
        Tag("list"),
    ],
    Discriminator(lambda given: "list" if isinstance(given, list) else "spread"),
]
"""Along a trunk: spread, or its steps."""


class Branches(Part):
    """What becomes of a trunk."""

    points: Annotated[Points, STUDIES] = Field(
        default=Spread(count=3), examples=[[20, 80], {"count": 4}]
    )
    """Where branches begin: a list of the trunk's steps, each moved to the next evaluation, or
    `{count: 4}` for that many points at equal distances in the logarithm of examples, from 1/64 to
    1/2 of the trunk. Default: `{count: 3}`."""
    factors: Annotated[list[Annotated[int, Field(ge=1, le=MANY)]], SEARCH] = Field(
        default=[1, 2, 4, 8, 16], min_length=2, max_length=MOST_ITEMS, examples=[[1, 2, 4, 8]]
    )
    """The batch sizes of branches, as multiples of the trunk's. 1 must be among them."""
    learning_rate: Annotated[Rates, STUDIES] = Rates()
    """The learning rates that branches try."""
    seeds: Annotated[int, SEARCH] = Field(default=8, ge=3, le=1000, examples=[4])
    """How many orders of the examples each branch is trained with. Half of them choose the learning
    rate, the others judge: with fewer than 8, intervals are wide."""
    length: Annotated[Length, SEARCH] = Length()
    """How long branches are."""
    loss: Annotated[Text, SEARCH] = Field(default="val/loss", examples=["train/loss"])
    """The metric that is compared; less is better. `train/loss`, with
    `evaluate: {train_examples: 1000}`, is smoother than `val/loss`."""
    confirm: Annotated[bool, FREE] = Field(default=False, examples=[True])
    """Whether to train to the end of the trunk's budget with both schedules and with the constant
    batch size, as `--confirm` does."""

    @model_validator(mode="after")
    def _with_a_reference(self) -> Branches:
        if 1 not in self.factors:
            raise ValueError("`factors` needs 1, the trunk's own batch size, to compare with")
        if len({*self.factors}) < len(self.factors):
            raise ValueError(f"`factors` must differ from each other, but got {self.factors}")
        return self


class TrunkBranches(Branches):
    """What becomes of a trunk that is the only recipe of its sweep."""

    trunk_seed: Annotated[int | None, COURSE] = Field(default=None, ge=0, le=2**63 - 1)
    """The trunk's seed. Default: that of any trial of this sweep."""
