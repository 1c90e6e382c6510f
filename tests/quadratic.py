"""The expected risk of the noisy quadratic model by its closed recursion, which tests compare
with."""

import numpy as np
from numpy.typing import NDArray

from orchestrator.records import EvaluationGrid

Numbers = NDArray[np.float64]


class Moments:
    """The second moments X = E x^2, V = E v^2 and C = E x v of each coordinate, of which a training
    with v <- b v + g, x <- x - a v and g = h x + noise of variance h / B makes a linear recursion.
    Rates may differ from step to step. They begin with these weights, whose rows are replicas."""

    def __init__(self, x: Numbers, v: Numbers | None = None) -> None:
        v = np.zeros_like(x) if v is None else v
        self.h = 1 / np.arange(1, x.shape[-1] + 1)
        self._x, self._v, self._c = x * x, v * v, x * v

    def copy(self) -> "Moments":
        other = Moments(self._x)
        other._x, other._v, other._c = self._x, self._v, self._c
        return other

    @property
    def risk(self) -> float:
        return 0.5 * float((self._x @ self.h).mean())

    def step(self, rate: float | Numbers, momentum: float, batch_size: int) -> None:
        h, x, a, b = self.h, self._x, rate, momentum
        xv = b * self._c + h * x
        self._v = b * b * self._v + h * h * x + 2 * b * h * self._c + h / batch_size
        self._c = xv - a * self._v
        self._x = x - 2 * a * xv + a * a * self._v


def steps_to_goal(
    *,
    d: int,
    goal: float,
    learning_rate: float,
    batch_size: int,
    budget: int,
    grid: EvaluationGrid,
    momentum: float = 0.0,
    precondition: float = 0.0,
) -> float:
    """The first evaluated step at which the expected risk is below `goal`; infinite if none is."""
    moments, upcoming = Moments(np.ones(d)), 0
    for step in range(budget + 1):
        if step in {upcoming, budget}:
            if not np.isfinite(moments.risk):
                break
            if moments.risk < goal:
                return step
            upcoming = grid.after(step)
        with np.errstate(over="ignore", invalid="ignore"):
            moments.step(learning_rate * moments.h**-precondition, momentum, batch_size)
    return float("inf")


def expected_risks(
    *, x: Numbers, v: Numbers, learning_rate: float, batch_size: int, momentum: float, steps: int
) -> Numbers:
    """Returns the expected risk before each of the given number of steps and after the last. For
    several replicas, it is their mean."""
    moments = Moments(x, v)
    risks = [moments.risk]
    for _ in range(steps):
        moments.step(learning_rate, momentum, batch_size)
        risks.append(moments.risk)
    return np.array(risks)
