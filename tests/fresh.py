"""Trains each of the trials given as a pickle on standard input in a process that has trained
nothing before, and prints their metrics as JSON."""

import json
import os
import pickle
import sys

import torch

from orchestrator.training import Ranks, train
from orchestrator.training.library_optimizers import find


def main() -> None:
    torch.set_num_threads(1)
    find("soap")  # Imports the library once, for all the forks.
    for trial in pickle.load(sys.stdin.buffer):
        sys.stdout.flush()
        if (child := os.fork()) == 0:
            metrics = [measurement.metrics for measurement in train(trial, Ranks())]
            print(json.dumps(metrics), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    main()
