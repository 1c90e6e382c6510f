"""Trains each of the trials given as a pickle on standard input in a process that has trained
nothing before, and prints their metrics as JSON."""

import json
import os
import pickle
import sys

import torch

from orchestrator.training import Ranks, train
from orchestrator.training.library_optimizers import find
from orchestrator.workloads import load_workload


def main() -> None:
    torch.set_num_threads(1)
    # Imports what takes seconds once, for all the forks.
    find("soap")
    load_workload("digits/mlp").data(None)
    for trial in pickle.load(sys.stdin.buffer):
        sys.stdout.flush()
        if (child := os.fork()) == 0:
            metrics = [measurement.metrics for measurement in train(trial, Ranks())]
            print(json.dumps(metrics), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    main()
