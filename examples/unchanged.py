"""Logistic regression, in a script that knows nothing of sweeps: python unchanged.py --lr=0.5"""

import argparse

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.5)
parser.add_argument("--momentum", type=float, default=0)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--max-steps", type=int, default=500)
args = parser.parse_args()

inputs = np.random.default_rng(0).normal(size=(2000, 20))
labels = inputs.sum(axis=1) > 0
draw = np.random.default_rng(args.seed)
weights, velocity = draw.normal(size=20), np.zeros(20)
for step in range(1, args.max_steps + 1):
    batch = draw.integers(1500, size=args.batch_size)
    guesses = 1 / (1 + np.exp(-inputs[batch] @ weights))
    gradient = inputs[batch].T @ (guesses - labels[batch]) / args.batch_size
    velocity = args.momentum * velocity + gradient
    weights -= args.lr * velocity
    if step % 5 == 0:
        margins = np.where(labels[1500:], 1, -1) * (inputs[1500:] @ weights)
        print(f"step {step} | val loss {np.log1p(np.exp(-margins)).mean():.4f}")
