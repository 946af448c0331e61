"""A time limit in seconds of the processor, which a busy machine does not use up."""

import signal
import threading
from contextlib import contextmanager


class TooSlow(BaseException):
    """Not an Exception: code that catches all of those must not hide it."""


@contextmanager
def within(seconds):
    """Raise TooSlow in the code that computes for longer, where the system has such an alarm."""

    def ring(number, frame):
        raise TooSlow(f"more than {seconds} s of the processor")

    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGPROF"):
        yield
        return
    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
