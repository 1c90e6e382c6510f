"""Decides how many trials of each study are stacked, that is, trained as one model."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from orchestrator.planning.rehearsal import point_at
from orchestrator.planning.sweep import Resources
from orchestrator.records import Study, StudyKey, Trial
from orchestrator.results import RunFiles
from orchestrator.training import one_thread
from orchestrator.training.stackable import Costs, best_width, why_not
from orchestrator.workloads import prepare

logger = logging.getLogger(__name__)


def widths_of(
    studies: Iterable[Study],
    resources: Resources,
    data_dir: Path | None,
    known: Mapping[StudyKey, int],
) -> dict[StudyKey, tuple[int, str]]:
    """The width of each study, and the reason why it is not larger, which is empty if there is
    nothing to say. The width depends on the study and the kind of device alone, so that two
    runs agree; one that is `known` stays. Trials are tried out on a CPU: every machine has one."""
    cpu = torch.device("cpu")
    reasons: dict[tuple[str, str], str | None] = {}
    """Workload and recipe -> the reason why trials can't be stacked at any batch size."""
    costs: Costs = {}
    found = {}
    with one_thread():
        for study in studies:
            one_by_one = _one_by_one(study, resources)
            if study.key in known or one_by_one is not None:
                found[study.key] = known.get(study.key, 1), one_by_one or ""
                continue
            trial = Trial(study=study, index=0, seed=0, params=point_at(study.space, 0.5))
            try:
                width, reason = best_width(trial, resources.kind, data_dir, costs)
                if resources.stack != "auto":
                    width, reason = resources.stack, ""
                of_recipe = study.workload, study.recipe
                if width > 1 and of_recipe not in reasons:
                    prepared = prepare(study.workload, data_dir, cpu)
                    reasons[of_recipe] = why_not(trial, *prepared, cpu)
            except Exception:
                # An error in the workload's code is reported when it is trained.
                found[study.key] = 1, ""
                continue
            if width > 1 and (why := reasons[of_recipe]) is not None:
                width, reason = 1, f"they can't be stacked: {why}"
            found[study.key] = min(width, study.trials), reason
    return found


def _one_by_one(study: Study, resources: Resources) -> str | None:
    """The reason why trials of a study are not stacked, if it is known without trying them."""
    if study.program is not None:
        return ""
    if (ranks := resources.ranks(study.batch_size)) > 1:
        return f"its trials take {ranks} ranks each"
    if study.grows:
        return "its batch size grows along the training"
    return "" if resources.stack == 1 or study.trials == 1 else None


def decide(
    run: RunFiles, studies: Sequence[Study], resources: Resources, data_dir: Path | None
) -> dict[StudyKey, int]:
    """The widths of the run's studies, which are decided and recorded now if they were not before.
    A study that has trials but no recorded width was begun before stacks existed."""
    known = run.widths()
    begun = [s.key for s in studies if s.key not in known and len(run.trials(s.key, ["trial"]))]
    before = {**dict.fromkeys(begun, 1), **known}
    found = widths_of(studies, resources, data_dir, before)
    for key, (width, reason) in found.items():
        logger.info("%s: %d at a time%s", key, width, f", since {reason}" if reason else "")
    widths = {key: width for key, (width, _) in found.items()}
    if widths != known:
        run.write_widths({**known, **widths})
    return widths
