"""How much of the time trials train: a sweep whose trials take about a second each.

digits/mlp, batch size 32, 5,000 steps, a goal that none reaches; as many slots as there are CPUs,
which trials share with Tune and this process.

busy      the share of the slots' time that went into training and evaluating, from the first
          trial's start until there was no trial left to start (`orchestrate sweep` prints it)
seconds   training and evaluating, median over the trials

Bound: busy at least 90 %.
"""

from __future__ import annotations

SWEEP = {
    "name": "slot-share",
    "workloads": ["digits/mlp"],
    "goals": ["val/error < 0"],
    "recipes": ["sgd"],
    "batch_sizes": [32],
    # Low enough that none diverges.
    "recipes_space": None,
    "budget": {"steps": 5000},
    "stop": {"dominated": False},
}

MIN_BUSY = 0.9
