"""Readers of the formats in which data sets come. They trust no length that a file states."""

from orchestrator.workloads.data.catalogue import CATALOGUE, DataSet, data_set
from orchestrator.workloads.data.cifar import read_cifar10
from orchestrator.workloads.data.idx import read_idx

__all__ = ["CATALOGUE", "DataSet", "data_set", "read_cifar10", "read_idx"]
