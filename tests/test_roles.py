"""What depends on each setting: no setting is forgotten, and what its role says is so."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, get_args

import pytest
from conftest import TINY, make_trial

from orchestrator.planning import studies
from orchestrator.planning.parts import Part
from orchestrator.planning.sweep import Recipe, Sweep
from orchestrator.planning.sweep_file import load_sweep, validated
from orchestrator.records import Role, SearchPlan, Study, differences, settings_of, shown_pair

EXAMPLES: dict[str, Any] = {
    "workloads": ["digits/cnn"],
    "recipes.space": {"learning_rate": 0.1},
    "report.baseline": "sgd@64",
    "evaluate.min_examples": 500,
    "evaluate.spacing": 0.5,
    "evaluate.noise_scale": True,
    "search.grid": {"learning_rate": 2},
    "search.points": [{"learning_rate": 0.3}],
}
"""Values of keys whose examples do not fit the tiny sweep, or say the same as their default."""

BESIDES: dict[str, dict[str, Any]] = {
    "search.grid": {"algorithm": "grid"},
    "search.points": {"algorithm": "points", "points": [{"learning_rate": 0.1}]},
}
"""Key -> the search of a sweep in which it has a meaning."""


def keys_of(kind: type[Part], place: str = "", whole: Role | None = None) -> Iterator[Any]:
    """The keys of sweep files: where they lie, their role, and a value."""
    for name, (key, own) in settings_of(kind).items():
        field, role = kind.model_fields[name], own or whole
        inner = [each for each in (field.annotation, *get_args(field.annotation)) if is_part(each)]
        if name in ("branch", "programs", "scales"):  # a program is an entry of `workloads`
            continue
        if inner and kind is not Recipe and name not in ("batch_sizes", "more"):
            yield from keys_of(inner[0], f"{place}{key}.", role)
        else:
            yield f"{place}{key}", role, EXAMPLES.get(place + key, (field.examples or [None])[0])


def is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Part)


@pytest.mark.parametrize(("key", "role", "value"), [*keys_of(Sweep)])
def test_a_key_acts_through_the_studies_alone_or_not_on_them(
    key: str, role: Role, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "rehearse_all", lambda *_: ())
    document = deepcopy(TINY) | {"recipes": [{"name": "sgd", "optimizer": "sgd"}]}
    document["search"] = BESIDES.get(key, {"trials": 3})
    before = validated(document, "before")
    *path, last = key.split(".")
    part: Any = document
    for name in path:
        part = part.setdefault(name, {})
        part = part[0] if isinstance(part, list) else part
    part[last] = value
    after = validated(document, "after")
    assert before != after
    acts = studies.plan(before).studies != studies.plan(after).studies
    assert acts == (role is Role.STUDIES)


def test_every_setting_has_a_role() -> None:
    """Or lies in a part whose settings have roles."""
    (branches, _) = get_args(Sweep.model_fields["branch"].annotation)
    for kind in (Study, SearchPlan, Sweep, Recipe, branches):
        without = {name for name, (_, role) in settings_of(kind).items() if role is None}
        assert without == {Study: {"search"}, Sweep: {"branch"}}.get(kind, set())


def test_a_checkpoint_of_an_earlier_version_is_one_of_the_same_trial() -> None:
    assert make_trial().identity == "ea589d3a4220edbb470a02e96343f33f"


def test_differences_name_the_key_the_role_and_both_values(sweep_file: Callable[..., Any]) -> None:
    changes = ["search.algorithm=sobol", "stop.at_goal=false", "goals=[val/error < 0.4]"]
    one, other = (
        studies.plan(load_sweep(sweep_file(), given)).studies[0] for given in ([], changes)
    )
    assert [(key, role, *shown_pair(*both)) for key, role, *both in differences(one, other)] == [
        ("goals", Role.END, "val/error < 0.5", "val/error < 0.4"),
        ("search.algorithm", Role.SEARCH, "halton", "sobol"),
        ("stop.at_goal", Role.COURSE, True, False),
        ("stop.dominated", Role.SEARCH, True, False),
    ]
    assert [*differences(one, one)] == []
