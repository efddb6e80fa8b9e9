"""Results written through a sink of files, and the files in its folder."""

from collections.abc import Callable
from pathlib import Path

from edgert.runtime.records import Result
from edgert.stages.sink.image_files import ImagesSink
from edgert.stages.sink.results import JsonlSink


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def write(sink: JsonlSink | ImagesSink, *results: Result, each: Callable[[], object] = lambda: None) -> None:
    sink.open()
    try:
        for result in results:
            sink.process(result)
            each()
    finally:
        sink.close()
