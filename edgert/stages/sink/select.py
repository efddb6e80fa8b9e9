"""From a ``sink:`` section to the sink. Each is imported when it is asked for: some are slow to load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from edgert.config.stage import SinkStage
from edgert.errors import ConfigError
from edgert.runtime.record import Result
from edgert.runtime.stage import Stage

_T = TypeVar("_T")


def sink_for(
    name: str,
    config: SinkStage,
    *,
    stats: Callable[[], Mapping[str, object]],
    function: Callable[[Result], object] | None,
) -> Stage:
    """The sink that ``config`` describes, not opened yet.

    Args:
        stats: the state of the run, shown by the live page.
        function: what a ``callback`` sink calls; ignored by the others.

    Raises:
        ConfigError: a callback without a function, a file without a path.
        StageError: a path that the sink cannot write.
    """
    if config.sink == "http":
        from edgert.stages.sink.http import HttpSink

        return HttpSink(name, config.host, config.port, stats)
    if config.sink == "callback":
        from edgert.stages.sink.callback import CallbackSink

        return CallbackSink(name, _given(function, name, "callback needs a function", "python: module:function"))
    if config.sink == "null":
        from edgert.stages.sink.null import NullSink

        return NullSink()
    return _file_sink(name, config, _given(config.path, name, f"sink: {config.sink} needs a path", "path: FILE"))


def _file_sink(name: str, config: SinkStage, path: Path) -> Stage:
    if config.sink == "video":
        from edgert.stages.sink.video import VideoSink

        return VideoSink(name, path, config.fps, config.quality)
    if config.sink == "images":
        from edgert.stages.sink.images import ImagesSink

        return ImagesSink(name, path, config.every)
    from edgert.stages.sink.jsonl import JsonlSink

    return JsonlSink(name, path)


def _given(value: _T | None, name: str, what: str, line: str) -> _T:
    if value is None:
        raise ConfigError(what, where=f"stages.{name}", fix=f"add {line}")
    return value
