"""The expected risk of the noisy quadratic model by its closed recursion, which tests compare
with."""

import numpy as np
from numpy.typing import NDArray

from orchestrator.records import EvaluationGrid


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
    """The first evaluated step at which the expected risk is below `goal`; infinite if none is.

    With v <- b v + g, x <- x - a v and g = h x + noise of variance h / B, the second moments
    X = E x^2, V = E v^2 and C = E x v of each coordinate follow a linear recursion.
    """
    h = 1 / np.arange(1, d + 1)
    a, b = learning_rate * h**-precondition, momentum
    x, v, c = np.ones(d), np.zeros(d), np.zeros(d)
    upcoming = 0
    for step in range(budget + 1):
        if step in {upcoming, budget}:
            risk = 0.5 * float(h @ x)
            if not np.isfinite(risk):
                break
            if risk < goal:
                return step
            upcoming = grid.after(step)
        with np.errstate(over="ignore", invalid="ignore"):
            xv = b * c + h * x
            v = b * b * v + h * h * x + 2 * b * h * c + h / batch_size
            c = xv - a * v
            x = x - 2 * a * xv + a * a * v
    return float("inf")


def expected_risks(
    *,
    x: NDArray[np.float64],
    v: NDArray[np.float64],
    learning_rate: float,
    batch_size: int,
    momentum: float,
    steps: int,
) -> NDArray[np.float64]:
    """Returns the expected risk before each of the given number of steps and after the last,
    starting from these weights. For several replicas (rows), it is their mean."""
    h = 1 / np.arange(1, x.shape[-1] + 1)
    a, b = learning_rate, momentum
    x, v, c = x * x, v * v, x * v
    risks = [0.5 * (x @ h).mean()]
    for _ in range(steps):
        xv = b * c + h * x
        v = b * b * v + h * h * x + 2 * b * h * c + h / batch_size
        c = xv - a * v
        x = x - 2 * a * xv + a * a * v
        risks.append(0.5 * (x @ h).mean())
    return np.array(risks)


class Moments:
    """The second moments of all coordinates after some steps, whose rates may differ."""

    def __init__(self, d: int) -> None:
        self._h = 1 / np.arange(1, d + 1)
        self._x, self._v, self._c = np.ones(d), np.zeros(d), np.zeros(d)

    def copy(self) -> "Moments":
        other = Moments(len(self._h))
        other._x, other._v, other._c = self._x, self._v, self._c
        return other

    @property
    def risk(self) -> float:
        return 0.5 * float(self._h @ self._x)

    def step(self, rate: float, momentum: float, batch_size: int) -> None:
        h, x, a, b = self._h, self._x, rate, momentum
        xv = b * self._c + h * x
        self._v = b * b * self._v + h * h * x + 2 * b * h * self._c + h / batch_size
        self._c = xv - a * self._v
        self._x = x - 2 * a * xv + a * a * self._v
