"""Python's garbage collector, held where its passes cost more than what they find."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_IMMORTAL = 2_000
"""Python 3.12 leaves what is immortal out of all passes, some hundreds of objects; ``gc.freeze`` in the
smallest of programs leaves out twice as many."""

_RUNNING = 2_000
"""New objects between two passes while a pipeline runs. What it leaves in cycles is little, some objects for each
request to its page: with fifty thousand between two passes that came to two megabytes in four hours."""


def runs_for_long() -> None:
    """What was made so far stays, and no pass goes over it again; what is made from now on is looked through often."""
    gc.freeze()
    gc.set_threshold(_RUNNING)


@contextmanager
def held() -> Iterator[None]:
    """It does not run meanwhile, in any thread."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def making_what_stays() -> Iterator[None]:
    """Held, and what is made meanwhile counts as old, such as classes: else the next pass, of what is young, would be
    over all of it. A pass over everything still finds what is garbage of it."""
    with held():
        try:
            yield
        finally:
            if gc.get_freeze_count() < _IMMORTAL:  # else the program froze something, which this would undo
                gc.freeze()
                gc.unfreeze()  # to the oldest generation (https://docs.python.org/3/library/gc.html#gc.unfreeze)
