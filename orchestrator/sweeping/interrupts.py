"""How a user asks for the end of a sweep."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

to_go_on = threading.Event()
"""Is set if a signal says that the same command is to be run again, on these or other machines."""


def heed_termination() -> None:
    """Makes SIGTERM interrupt this process as Ctrl-C does. This works also where a shell has made
    the process ignore Ctrl-C, as shells do with background jobs of scripts. Without it, SIGTERM
    would end the process at once. So does SIGUSR1, which queues send before the time is up, and
    SIGHUP, of a terminal that is closed, except below `nohup`."""

    def interrupt(*received: object) -> None:
        if received[0] == signal.SIGUSR1:
            if to_go_on.is_set():
                return  # some queues send it to several processes that hand it on
            to_go_on.set()
        if received[0] == signal.SIGHUP:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # system and shell both send it
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(*received)  # type: ignore[arg-type]

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGUSR1, interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, interrupt)


@contextmanager
def heeded(asked: threading.Event, tell: Callable[[], None]) -> Iterator[None]:
    """Turns the first interrupt in the `with` block into a request, which sets `asked` and of which
    `tell` is told. A second interrupt raises KeyboardInterrupt as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets interrupts
        return

    def ask(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)
        tell()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
