"""The key `cooldown` of a recipe's schedule, and what it does not go together with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pydantic import Field, model_validator

from orchestrator.planning.parts import Part
from orchestrator.planning.recipes import COOLDOWN
from orchestrator.planning.rehearsal import point_at
from orchestrator.planning.sweep import Recipe
from orchestrator.planning.sweep_file import validated_as
from orchestrator.records import MANY, BadInput, Choice, Study, grouped, mistakes_in, refuse_unknown
from orchestrator.records.cooling import first_start
from orchestrator.records.lr_schedules import COOLDOWN_SHAPES, DECAYS
from orchestrator.records.stages import LADDER, Cooldown


class CooldownPart(Part):
    """The fields of a `Cooldown` as people write them; docs/cooldowns.md says what each is for."""

    shape: str = "linear"
    fraction: float | None = Field(default=None, gt=0, lt=1)
    steps: int | None = Field(default=None, ge=1, le=MANY)
    end_factor: float = Field(default=0.0, ge=0, lt=1)
    power: float | None = Field(default=None, gt=0, le=100)

    @model_validator(mode="after")
    def _agree(self) -> CooldownPart:
        refuse_unknown("shape", [self.shape], COOLDOWN_SHAPES)
        if self.power is not None and self.shape != "polynomial":
            raise BadInput(f"`power` has no effect on shape {self.shape!r}", code="no-effect")
        return self


def cooldown_of(recipe: Recipe) -> Cooldown | None:
    if COOLDOWN not in recipe.schedule:
        return None
    where = f"recipe {recipe.name!r}: schedule: {COOLDOWN}"
    given = recipe.schedule[COOLDOWN]
    part = validated_as(CooldownPart, {} if given is None else given, where)
    share = 0.2 if part.fraction is None and part.steps is None else part.fraction
    with mistakes_in(where):
        return Cooldown(**{**part.model_dump(), "fraction": share})


def most_steps(study: Study) -> int:
    """The largest number of steps that a trial of the study trains, about: those of the whole
    ladder, and those of a bracket at its end, in which each goal may lie elsewhere."""
    if study.cooldown is None:
        return study.budget_steps
    *_, last = starts = [*study.cooldown.ladder(study.grid.after(0), study.budget_steps)]
    halvings = math.ceil(math.log2(math.log(LADDER) / math.log1p(study.grid.spacing or 1)))
    cooldowns = sum(min(1 << level, len(study.goals) or 1) for level in range(halvings))
    bracket = cooldowns * study.cooldown.length(last) + last - last // LADDER
    return last + sum(map(study.cooldown.length, starts)) + bracket


def what_cooldowns_cost(studies: Sequence[Study]) -> Iterator[str]:
    """Sentences on the steps of trials that are cooled down, recipe by recipe."""
    cooled = [study for study in studies if study.cooldown is not None]
    for recipe, mine in grouped(cooled, lambda study: study.recipe).items():
        more = max(most_steps(study) / study.budget_steps for study in mine)
        yield (
            f"{recipe}: with its cooldowns, a trial trains up to about {more:.1f} times the steps "
            "of its budget."
        )


def _clashes(study: Study, *, branches: bool) -> Iterator[str]:
    if branches:
        yield "branches compare trainings at the rate of their trunk: leave out the cooldown."
    decay = study.space.get("decay", "constant")
    for each in decay.options if isinstance(decay, Choice) else [decay]:
        if not DECAYS[str(each)].endless:
            yield (
                f"decay {each!r} brings the rate down by the end of the budget, so there is "
                "nothing left to cool down. Leave out one of them."
            )
    if study.batch_schedule is not None:
        yield "trials whose batch size grows can't be cooled down: leave out one of them."
    if len({(goal.metric, goal.direction) for goal in study.goals}) > 1:
        yield (
            "all goals must be bounds of one metric, since one cooldown is judged by them all. "
            "Make a sweep of each metric."
        )


def refuse_uncoolable(study: Study, *, branches: bool) -> None:
    """Raises `BadInput` where trials of the study can't be cooled down."""
    if study.cooldown is None:
        return
    with mistakes_in(f"recipe {study.recipe!r}: schedule: {COOLDOWN}"):
        for clash in _clashes(study, branches=branches):
            raise BadInput(clash, code="not-together")
        for goal in study.goals:
            if goal.holds:
                raise BadInput(
                    f"goal {goal}: a cooldown has a single measurement, at its end. Leave out the "
                    "part from `for` on.",
                    code="not-together",
                )
            if goal.metric.split("/")[0] not in ("val", "test", "train"):
                raise BadInput(
                    f"goal {goal}: only what is evaluated counts at the end of a cooldown, such as "
                    "val/loss.",
                    code="wrong-value",
                )
        least = study.cooldown.end(first_start(study, point_at(study.space, 0.5)))
        if least > study.budget_steps:
            raise BadInput(
                f"at batch size {study.batch_size:,}, the first cooldown ends at step {least:,}, "
                f"beyond the budget of {study.budget_steps:,} steps. Raise the budget, or shorten "
                "warmup or cooldown.",
                code="no-such-budget",
            )
