"""Readers of data sets in the formats in which they are published. The readers check every length
that a file states."""

from orchestrator.workloads.data.catalogue import CATALOGUE, FOLDER_VARIABLE, DataSet, data_set
from orchestrator.workloads.data.cifar import read_cifar10
from orchestrator.workloads.data.fetch import fetch
from orchestrator.workloads.data.idx import read_idx

__all__ = [
    "CATALOGUE",
    "FOLDER_VARIABLE",
    "DataSet",
    "data_set",
    "fetch",
    "read_cifar10",
    "read_idx",
]
