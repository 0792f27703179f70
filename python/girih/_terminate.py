"""What a run leaves is written on SIGTERM too: that is how schedulers end a job.

Python dies of SIGTERM without running its exit handlers. A process that was asked for a trace or a
report gets a handler that writes them, and then dies of the same signal, so that whoever sent it
sees no difference. A handler of the program's own is left alone, whenever it is set.

Python runs handlers between two steps of the main thread: a call that never returns (a collective
whose peer is gone) keeps this one from running, and only SIGKILL ends such a process.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


def before_dying(work: Callable[[], None]) -> bool:
    """Has SIGTERM call `work` before it ends the process. False if the signal is not ours.

    It is not if the program has said what becomes of it, or outside of the main thread, where
    Python sets no handlers.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return False

    def die(number: int, _frame: FrameType | None) -> None:
        # A second signal ends the process at once.
        signal.signal(number, signal.SIG_DFL)
        try:
            work()
        finally:
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, die)
    return True
