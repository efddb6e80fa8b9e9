"""Python's garbage collector, held where its passes cost more than what they find."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_IMMORTAL = 2_000
"""Python 3.12 leaves what is immortal out of all passes, some hundreds of objects; ``gc.freeze`` in the
smallest of programs leaves out twice as many."""

_RUNNING = 2_000
"""New objects between two passes while a pipeline runs. What it leaves in cycles is little, such as asyncio's transport
of each request to its page; with the tens of thousands that suit a start, that would lie about for hours."""


@contextmanager
def gc_frequent() -> Iterator[None]:
    """Have the collector run often and briefly within the block, for a program that runs for long.

    Objects made before the block are left out of all its passes. At the end the settings are as before.
    """
    before, was_frozen = gc.get_threshold(), gc.get_freeze_count() >= _IMMORTAL
    gc.freeze()
    gc.set_threshold(_RUNNING)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not was_frozen:
            gc.unfreeze()


@contextmanager
def gc_held() -> Iterator[None]:
    """Keep the collector from running within the block, in any thread."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Keep the collector from running within the block, and count what is made there as old.

    Otherwise the next pass over young objects would go over all of it, such as classes of imported modules. A full
    pass still finds the garbage among it.
    """
    with gc_held():
        try:
            yield
        finally:
            if gc.get_freeze_count() < _IMMORTAL:  # else the program froze something, which this would undo
                gc.freeze()
                gc.unfreeze()  # to the oldest generation (https://docs.python.org/3/library/gc.html#gc.unfreeze)
