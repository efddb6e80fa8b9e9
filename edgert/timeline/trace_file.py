"""Trace files of recordings, whose suffix sets the format."""

import os
from collections.abc import Callable
from pathlib import Path

from edgert.errors import ArtifactError, ConfigError, nearest
from edgert.files import replace_bytes
from edgert.runtime.worker import SHORT_TURNS
from edgert.timeline.timeline_spans import Spans, spans_of
from edgert.timeline.trace_formats import chrome_bytes, perfetto_bytes
from edgert.tracing import Recorded


def _page_bytes(spans: Spans) -> bytes:
    from edgert.timeline.timeline_page import page_of  # needs Jinja2, which other formats do not

    return page_of(spans).encode()


_FORMATS: dict[str, Callable[[Spans], bytes]] = {
    ".pftrace": perfetto_bytes,
    ".json": chrome_bytes,
    ".html": _page_bytes,
}
ENDINGS = ", ".join(_FORMATS)


def check_trace_path(path: Path) -> None:
    """Check before recording that a trace can be written.

    Raises:
        ConfigError: the suffix is none of :data:`ENDINGS`.
        ArtifactError: the folder does not exist, or is read-only.
    """
    if path.suffix not in _FORMATS:
        what = f"{path.name!r} does not end like a trace{nearest(path.suffix, _FORMATS)}"
        raise ConfigError(what, why=f"the ending sets the format: {ENDINGS}", fix="--trace run.pftrace")
    folder = path.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        why = "the folder is read-only" if folder.is_dir() else "there is no such folder"
        raise ArtifactError(f"cannot write {str(path)!r}", why=why, fix="choose a folder that can be written")


def write_trace(recorded: Recorded, path: Path) -> None:
    """Write a recording in the format of the path's suffix, atomically. Raises ConfigError or ArtifactError."""
    check_trace_path(path)
    with SHORT_TURNS:  # the pipeline may go on
        content = _FORMATS[path.suffix](spans_of(recorded))
    replace_bytes(path, content)
