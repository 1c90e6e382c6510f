"""Sends log messages of a sweep to a file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def logging_to(log: Path) -> Iterator[None]:
    """Sends log messages to the file `log`. Several of Ray's loggers have terminal handlers, which
    are all replaced."""
    handler = logging.FileHandler(log, encoding="utf-8", errors="backslashreplace")
    # Otherwise, on a full disk, each line of the log would print a traceback.
    handler.handleError = lambda record: None  # type: ignore[method-assign]
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in ("ray", "ray.tune", "ray.train", "orchestrator")]
    before = [(each, each.handlers, each.level, each.propagate) for each in loggers]
    for each in loggers:
        each.handlers, each.propagate = [handler], False
        each.setLevel(logging.INFO)
    # At the end Tune looks for files of loggers that we turn off, and would warn once per trial.
    logging.getLogger("ray.tune.analysis.experiment_analysis").setLevel(logging.ERROR)
    try:
        yield
    finally:
        for each, handlers, level, propagate in before:
            each.handlers, each.propagate = handlers, propagate
            each.setLevel(level)
        handler.close()
