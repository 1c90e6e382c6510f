"""The page a person decides from: the only place that imports plotly."""

from orchestrator.report.content import Panel, Settings, Source, panels_of
from orchestrator.report.page import write_report
from orchestrator.report.trials import how_trials_ended, spans_of

__all__ = [
    "Panel",
    "Settings",
    "Source",
    "how_trials_ended",
    "panels_of",
    "spans_of",
    "write_report",
]
