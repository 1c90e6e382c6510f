"""The page a person decides from: the only place that imports plotly."""

from orchestrator.report.content import Panel, Source, panels_of, spans_of
from orchestrator.report.page import write_report

__all__ = ["Panel", "Source", "panels_of", "spans_of", "write_report"]
