"""The page a person decides from: the only place that imports plotly."""

from orchestrator.report.branch_page import write_page_of
from orchestrator.report.gathering import Source
from orchestrator.report.page import figures_of, price_of, write_report_of
from orchestrator.report.scales import frontier_for_page
