"""Optuna's samplers by generations: their proposals depend only on the results that they were
told."""

import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from conftest import refused

from orchestrator.records import Choice, Range, Space, Value
from orchestrator.search.adaptive import Adaptive, check_sampler

Point = dict[str, Value]
Generation = tuple[list[Point], list[float | None]]

PLANE: Space = {
    "learning_rate": Range(low=1e-4, high=1, scale="log"),
    "momentum": Range(low=0, high=0.99, scale="reverse_log"),
    "clip": 2,
}
MIXED: Space = {
    "learning_rate": Range(low=1e-4, high=1, scale="log"),
    "layers": Range(low=1, high=6, integer=True),
    "decay": Choice(options=("none", "cosine")),
    "decay_share": Range(low=0, high=1),
}
OWN = """
import optuna

class Evolved(optuna.samplers.NSGAIISampler):
    def __init__(self, seed):
        super().__init__(seed=seed, population_size=4)

def seedless():
    return Evolved(0)

def no_sampler(seed):
    return "tpe"
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def bowl(point: Mapping[str, Value]) -> float:
    """Returns a loss that is 0 at a learning rate of 10**-2.8 and a momentum of 1 - 10**-1.5, off
    the middle of both ranges."""
    across = math.log10(float(point["learning_rate"])) / 4 + 0.7
    up = math.log10(1 - float(point.get("momentum", 0.9))) / 2 + 0.75
    return across**2 + up**2 + 0.01 * float(point.get("layers", 0))


def run(
    search: Adaptive,
    generations: int,
    count: int = 8,
    value: Callable[[Point], float | None] = bowl,
) -> list[Generation]:
    done = []
    for number in range(generations):
        points = search.propose(number * count, count)
        done.append((points, [value(point) for point in points]))
        search.learn(*done[-1])
    return done


def replay(search: Adaptive, past: list[Generation]) -> list[list[Point]]:
    proposed = []
    for points, values in past:
        proposed.append(search.propose(0, len(points)))
        search.learn(points, values)
    return proposed


@pytest.mark.dear
@pytest.mark.parametrize(
    ("algorithm", "space"),
    [
        ("tpe", MIXED), ("cmaes", PLANE), ("cmaes", MIXED), ("own", MIXED),
        pytest.param("gp", MIXED, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_replayed_generations_lead_to_the_same_points(
    algorithm: str, space: Space, own: Path
) -> None:
    algorithm = f"{own}:Evolved" if algorithm == "own" else algorithm
    seed = 2**62 + 3
    numbers = itertools.count()
    past = run(
        Adaptive(space, algorithm, seed),
        4,
        value=lambda point: None if next(numbers) % 5 == 3 else bowl(point),
    )
    resumed = Adaptive(space, algorithm, seed)
    assert replay(resumed, past[:3]) == [points for points, _ in past[:3]]
    assert resumed.propose(24, 3) == past[3][0][:3], "a smaller generation is the larger's start"
    other = Adaptive(space, algorithm, seed + 1)
    assert other.propose(0, 8) != past[0][0]


@pytest.mark.parametrize("algorithm", ["tpe", "gp", "cmaes"])
def test_values_are_of_their_range_and_no_two_points_are_the_same(algorithm: str) -> None:
    whole: Space = {
        "layers": Range(low=1, high=4, integer=True),
        "width": Range(low=8, high=64, scale="log", integer=True),
        "nesterov": Choice(options=(False, True)),
        "clip": 2,
    }
    for points, _ in run(Adaptive(whole, algorithm, 0), 4, value=lambda p: float(p["width"])):
        for number, point in enumerate(points):
            assert point not in points[:number]
            assert json.loads(json.dumps(point)) == point
            assert type(point["layers"]) is type(point["width"]) is int
            assert 1 <= point["layers"] <= 4
            assert 8 <= point["width"] <= 64
            assert type(point["nesterov"]) is bool
            assert point["clip"] == 2


@pytest.mark.dear
@pytest.mark.parametrize(
    ("algorithm", "told"),
    [*itertools.product(["tpe", "cmaes"], [None, math.inf, 1.0]), ("gp", None)],
)
def test_it_goes_on_where_nothing_can_be_learned(
    algorithm: str, told: float | None, capfd: pytest.CaptureFixture[str]
) -> None:
    for points, _ in run(Adaptive(MIXED, algorithm, 0), 3, value=lambda point: told):
        assert len({str(point) for point in points}) == 8
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("algorithm", ["tpe", "gp", "cmaes"])
def test_a_space_of_fewer_points_than_a_generation(algorithm: str) -> None:
    for points, _ in run(Adaptive({"clip": 2}, algorithm, 0), 3, value=lambda point: 1.0):
        assert points == [{"clip": 2}] * 8
    two: Space = {"nesterov": Choice(options=(False, True))}
    for points, _ in run(
        Adaptive(two, algorithm, 0), 3, value=lambda point: float(point["nesterov"])
    ):
        assert {point["nesterov"] for point in points} == {False, True}


@pytest.mark.dear
@pytest.mark.parametrize(("algorithm", "generations"), [("tpe", 6), ("gp", 2), ("cmaes", 6)])
def test_points_that_were_not_its_own_are_learned_from(algorithm: str, generations: int) -> None:
    """This happens after a change of version. Here, the trials on disk come from another seed."""
    past = run(Adaptive(PLANE, algorithm, 10), generations)
    resumed = Adaptive(PLANE, algorithm, 1)
    assert replay(resumed, past) != [points for points, _ in past]
    again = Adaptive(PLANE, algorithm, 1)
    replay(again, past)
    points = resumed.propose(8 * generations, 4)
    assert points == again.propose(8 * generations, 4)
    untold = Adaptive(PLANE, algorithm, 1)
    replay(untold, [(points, [None] * 8) for points, _ in past])
    blind = untold.propose(8 * generations, 4)
    assert statistics.mean(map(bowl, points)) < statistics.mean(map(bowl, blind)) / 3


def test_samplers_of_ones_own_are_checked(own: Path) -> None:
    check_sampler(f"{own}:Evolved")
    check_sampler("optuna.samplers:RandomSampler")
    for place, code, *values in [
        ("no.such:Sampler", "not-importable", "sampler 'no.such:Sampler'"),
        (":Sampler", "wrong-value", "':Sampler'", "MODULE:CLASS"),
        (f"{own}:Evolve", "unknown-name", "'Evolve'", "'Evolved'"),
        (f"{own}:seedless", "not-callable", f"{own}:seedless", "'seed'"),
        (f"{own}:no_sampler", "wrong-result", f"{own}:no_sampler", "'tpe'", "BaseSampler"),
        ("optuna.samplers:GridSampler", "not-callable", "search_space"),
        (f"{own}:optuna", "not-callable", f"{own}:optuna"),
    ]:
        with refused(code, *values):
            check_sampler(place)
