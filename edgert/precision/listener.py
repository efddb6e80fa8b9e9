"""Who is told what goes on while a model is made."""

from __future__ import annotations

from collections.abc import Callable

Tell = Callable[[str], object]
"""Called with one line about what is being done."""
Bar = Callable[[str, int, int], object]
"""Called with what is being counted, how many are done and how many there are."""


def as_progress(bar: Bar) -> Callable[[int, int | None, str], None]:
    """A bar as what calibration calls with the pictures done, how many there are where that is known, and a name."""

    def progress(done: int, total: int | None, name: str) -> None:
        bar("calibrating", done, total or done)

    return progress
