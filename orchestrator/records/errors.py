"""Errors with messages that a user can act on."""

from __future__ import annotations

import difflib
import re
import reprlib
import sysconfig
import traceback
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class BadInput(ValueError):
    """Something that a user wrote can't be used. The message states the rule, the value and the
    remedy. `code` names the rule: docs/command-line.md lists the codes."""

    def __init__(self, message: str, *, code: str = "bad-input") -> None:
        super().__init__(message)
        self.code = code

    def at(self, where: str) -> BadInput:
        """The same error, with the place of the mistake."""
        return BadInput(f"{where}: {self}", code=self.code)


@contextmanager
def mistakes_in(where: str) -> Iterator[None]:
    """Adds the place of a mistake to a `BadInput` that is raised within."""
    try:
        yield
    except BadInput as error:
        raise error.at(where) from None


class MissingData(BadInput):
    """A data set is not on this machine."""


class SweepFailed(RuntimeError):
    """All trials of a sweep failed. The message ends with the error of the last trial."""


class RankFailed(RuntimeError):
    """Another rank of a trial raised an error, which is the message."""


SHOWN = 60
"""Largest number of characters of a value that an error message shows."""

_REPR = reprlib.Repr()
_REPR.maxlevel = 2
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = SHOWN


def shown(value: object) -> str:
    """Returns a value as an error message shows it. The value is never written out in full: with
    YAML's aliases, lists can contain each other so often that their text would take gigabytes."""
    return cut(_REPR.repr(value))


def cut(text: str, length: int = SHOWN) -> str:
    """Returns the text, shortened to at most `length` characters."""
    return text if len(text) <= length else text[: length - 3] + "..."


CONTROLS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that no name may contain and no terminal should get: control characters, separators of
lines and paragraphs, changes of the direction of writing, and halves of characters."""


def escaped(text: str, *, but: str = "") -> str:
    """The text with each character in `CONTROLS`, except those in `but`, as a Python escape."""
    return CONTROLS.sub(lambda found: found[0] if found[0] in but else ascii(found[0])[1:-1], text)


def unknown(
    kind: str, name: object, known: Iterable[str], *, code: str = "unknown-name"
) -> BadInput:
    """The error for a name that is in no registry. It lists the known names, closest first."""
    names = sorted(set(known))
    close = difflib.get_close_matches(shown(name).strip("'"), names, n=3, cutoff=0.5)
    listed = cut(", ".join(close + [other for other in names if other not in close]), 2000)
    hint = f"Did you mean {shown(close[0])}? " if close else ""
    return BadInput(f"Unknown {kind} {shown(name)}. {hint}Known: {listed or 'none'}.", code=code)


def refuse_unknown(
    kind: str, names: Iterable[object], known: Collection[str], *, code: str = "unknown-name"
) -> None:
    """Raises `BadInput` for the first of `names` that is in no registry."""
    for name in names:
        if name not in known:
            raise unknown(kind, name, known, code=code)


def wrong_value(name: str, rule: str, value: object) -> BadInput:
    """Makes the error for a value that its place can't take."""
    return BadInput(f"{name} must be {rule}, but got {shown(value)}.", code="wrong-value")


def counted(number: int, noun: str) -> str:
    """A number with its noun, such as "1 study" or "2,394 trials"."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else many}"


def unreadable(what: object, error: object) -> BadInput:
    """Makes the error for a file or folder that can't be read."""
    reason = getattr(error, "strerror", None) or error
    return BadInput(f"{what} can't be read: {reason}.", code="unreadable")


def mistake(what: str, error: Exception) -> str:
    """A line about a part of an answer that is left out because this program made a mistake."""
    *_, last = traceback.extract_tb(error.__traceback__)
    where = f"{Path(last.filename).name}, line {last.lineno}"
    reason = escaped(cut(f"{type(error).__name__}: {error}", 200))
    return (
        f"{what} is left out, because this program made a mistake ({reason}, {where}). Please "
        f"report it. Everything else is as it should be."
    )


def frames_of_user(error: BaseException) -> str:
    """The exception as Python prints it, with only the frames of the user's code. Empty if there
    are no such frames: then the error is in this project."""
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    ours = [Path(__file__).parent.parent, (Path(__file__).parent.parent / "workloads").resolve()]
    known = [folder.resolve() for folder in [*map(Path, libraries), *ours]]
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(Path(frame.filename).resolve().is_relative_to(folder) for folder in known)
        and Path(frame.filename).is_file()
        and Path(frame.filename).stem != "orchestrate"
    ]
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    return "".join(lines).rstrip() if frames else ""


def corrupt(what: object, problem: object) -> BadInput:
    """Makes the error for a file of a data set that does not hold what it should."""
    return BadInput(f"{what} is corrupt: {problem}. Get it anew.", code="corrupt")
