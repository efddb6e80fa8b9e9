"""``edgert``, and ``python -m edgert``: the process from its first import to its last thread."""

import atexit
import os
import signal
import sys
import threading
from typing import Any

_SIGNALS_THAT_KILL = 3


def main() -> None:
    """Run the ``edgert`` command. Ctrl-C ends it without a traceback at any moment, even while modules are imported."""
    is_handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else ignored, as in the background
    if is_handled:
        signal.signal(signal.SIGINT, _exit_at_once)  # there is nothing to clean up yet
    _end_at_third_signal()
    from edgert import cli
    from edgert.cli.progress import Interruption, raise_interrupt
    from edgert.errors import EXIT_INTERRUPTED

    if not is_handled:
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
        # The interrupt may have become another error, or was lost where Python cannot raise it. After one in exec(), as
        # dataclasses call it, CPython would end by the signal itself; the next such call resets that.
        eval("0")  # noqa: S307
        raise SystemExit(EXIT_INTERRUPTED) from end
    finally:
        if signal.getsignal(signal.SIGINT) is raise_interrupt:  # else the last output must not be interrupted
            signal.signal(signal.SIGINT, _exit_at_once)
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # while Python itself ends


def _end_at_third_signal() -> None:
    """End the process at the third signal, even if its main thread, which runs handlers, is in a library's call."""
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
