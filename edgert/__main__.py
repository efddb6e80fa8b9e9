"""``edgert``, and ``python -m edgert``: the process from its first import to its last thread."""

import atexit
import os
import signal
import sys
import threading
from typing import Any

_SIGNALS_THAT_KILL = 3


def main() -> None:
    """Run the ``edgert`` command. Ctrl-C ends it without a traceback at any moment, also while modules are imported."""
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, as in the background
    if is_heard:
        signal.signal(signal.SIGINT, _exit_at_once)  # nothing is there to clean up
    _end_at_third_signal()
    from edgert import cli
    from edgert.cli.progress import Interruption, raise_interrupt
    from edgert.errors import EXIT_INTERRUPTED

    if not is_heard:
        cli.main()
        return
    report = sys.unraisablehook
    sys.unraisablehook = lambda one: None if one.exc_type is KeyboardInterrupt else report(one)
    try:
        signal.signal(signal.SIGINT, raise_interrupt)
        cli.main()
    except (KeyboardInterrupt, SystemExit) as end:
        if not Interruption.was_raised:
            raise
        # It may have become another error, or got lost where Python cannot raise it. If it came in an exec() of text,
        # as dataclasses have, CPython would end by the signal itself; the next such call has it forget that.
        eval("0")  # noqa: S307
        raise SystemExit(EXIT_INTERRUPTED) from end
    finally:
        if signal.getsignal(signal.SIGINT) is raise_interrupt:  # else what is written last must not be broken off
            signal.signal(signal.SIGINT, _exit_at_once)
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # only Python's own end is left then


def _end_at_third_signal() -> None:
    """End the process at the third signal even while its main thread, which runs handlers, is in a library's call."""
    reader_end, writer_end = os.pipe()
    os.set_blocking(writer_end, False)
    signal.set_wakeup_fd(writer_end, warn_on_full_buffer=False)

    def watch() -> None:
        numbers = b""
        while len(numbers) < _SIGNALS_THAT_KILL:
            numbers += bytes(one for one in os.read(reader_end, 1) if one in (signal.SIGINT, signal.SIGTERM))
        os._exit(128 + numbers[-1])

    threading.Thread(target=watch, name="edgert:third-signal", daemon=True).start()


def _exit_at_once(number: int, _: Any) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    main()
