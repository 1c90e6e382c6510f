"""Logistic regression, in a function that a sweep calls with each trial."""

import numpy as np


def main(trial):
    inputs = np.random.default_rng(0).normal(size=(2000, 20))
    labels = inputs.sum(axis=1) > 0
    draw = np.random.default_rng(trial.seed)
    weights = draw.normal(size=20)
    for step in range(1, trial.steps + 1):
        batch = draw.integers(1500, size=trial.batch_size)
        guesses = 1 / (1 + np.exp(-inputs[batch] @ weights))
        gradient = inputs[batch].T @ (guesses - labels[batch]) / trial.batch_size
        weights -= trial.params["learning_rate"] * gradient
        if step % 5 == 0:
            wrong = (inputs[1500:] @ weights > 0) != labels[1500:]
            if not trial.report(step, {"error": wrong.mean()}):
                break
