"""The trials of a study of Optuna that was made elsewhere, with their intermediate values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.records import BadInput, cut, escaped


def trials_in(source: str) -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """STUDY/NUMBER of each trial in a storage, sqlite:///FILE or a journal -> its settings, and its
    rows, of which each has a `step` if the value is an intermediate one."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    file = Path(source.removeprefix("sqlite:///"))
    if not file.is_file():
        raise BadInput(f"{source} can't be read: there is no file {file}.", code="unreadable")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        storage: Any = (
            # Otherwise Optuna would make its tables in any file.
            optuna.storages.RDBStorage(f"sqlite:///file:{file.resolve()}?mode=ro&uri=true")
            if source.startswith("sqlite:")
            else JournalStorage(JournalFileBackend(source))
        )
        studies = {
            study.study_name: storage.get_all_trials(study._study_id)
            for study in storage.get_all_studies()
        }
    except Exception as error:  # Optuna and the libraries below it raise all kinds of errors
        reason = escaped(cut(f"{type(error).__name__}: {error}", 300))
        raise BadInput(
            f"{source} can't be read as a storage of Optuna: {reason}.", code="unreadable"
        ) from None
    return {
        f"{name}/{trial.number}": (
            {"state": trial.state.name.lower(), **trial.user_attrs, **trial.params},
            [
                {"step": step, "value": value}
                for step, value in sorted(trial.intermediate_values.items())
            ]
            or [{f"value_{n}" if n else "value": v for n, v in enumerate(trial.values or [])}],
        )
        for name, trials in studies.items()
        for trial in trials
    }
