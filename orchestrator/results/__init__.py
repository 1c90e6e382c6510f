"""What a run keeps on disk, and the frontier read from it."""

from orchestrator.results.archive import export_archive, import_archive
from orchestrator.results.frontier import (
    FrontierRow,
    frontier_of,
    median_interval,
    parse_goals,
    to_csv,
    write_frontier,
)
from orchestrator.results.provenance import provenance
from orchestrator.results.store import Run

__all__ = [
    "FrontierRow",
    "Run",
    "export_archive",
    "frontier_of",
    "import_archive",
    "median_interval",
    "parse_goals",
    "provenance",
    "to_csv",
    "write_frontier",
]
