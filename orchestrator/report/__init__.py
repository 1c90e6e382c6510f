"""The page a person decides from: the only place that imports plotly."""

from orchestrator.report.page import write_report

__all__ = ["write_report"]
