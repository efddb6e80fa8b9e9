"""Sinks opened for a block, results written through one, and the files in its folder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from edgert.runtime.records import Result
from edgert.runtime.stage import Stage

Sink = TypeVar("Sink", bound=Stage)


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@contextmanager
def opened(sink: Sink) -> Iterator[Sink]:
    sink.open()
    try:
        yield sink
    finally:
        sink.close()


def write(sink: Stage, *results: Result, each: Callable[[], object] = lambda: None) -> None:
    with opened(sink):
        for result in results:
            sink.process(result)
            each()
