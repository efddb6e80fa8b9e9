"""TensorRT's log: lines about where layers run, and why, are recognized.

TensorRT never raises when it moves a layer from the DLA to the GPU; it writes a line. The wording is that of the logs
of 8.4 to 10.7 that NVIDIA's users have published (issues of NVIDIA/TensorRT, NVIDIA-AI-IOT/jetson_dla_tutorial).
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from edgert.backend.tensorrt.library import ILogger, Trt

Kind = Literal[
    "",
    "moved",
    "refused",
    "rule",
    "scale",
    "precision",
    "dynamic",
    "batch",
    "loadables",
    "standalone",
    "implementation",
    "memory",
    "device",
    "dla",
    "gpu",
]
"""``moved``: from the DLA to the GPU. ``refused``: by the DLA compiler, after the static check. ``rule``, ``scale``,
``precision``, ``dynamic``, ``batch``, ``loadables``: why. ``standalone``: a loadable by itself is impossible.
``implementation``: no way to run a layer or region was found. ``memory``: there was not enough. ``device``: no such DLA
core, or it failed. ``dla``, ``gpu``: the summary's line for a layer that runs there. Empty: means nothing to edgert."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One line of the log.

    Attributes:
        severity: ``INTERNAL_ERROR``, ``ERROR``, ``WARNING``, ``INFO`` or ``VERBOSE``.
        text: what TensorRT wrote.
        kind: see :data:`Kind`.
        layer: the layer it is about, as TensorRT calls it; empty where the line names none.
    """

    severity: str
    text: str
    kind: Kind = ""
    layer: str = ""


_LAYER = r"(?P<layer>.+?)"
_RULES: tuple[tuple[Kind, str], ...] = (
    ("dla", r"^\s*\[DlaLayer\] (?P<layer>.+?),?\s*$"),
    ("gpu", r"^\s*\[GpuLayer\] (?:[A-Z_0-9]+: )?(?P<layer>.+?),?\s*$"),
    ("moved", rf"Layer '{_LAYER}' \(\w+\): Unsupported on DLA\. Switching this layer's device type to GPU"),
    ("moved", rf"[Ll]ayer {_LAYER} is not supported on DLA, falling back to GPU"),
    ("refused", rf"Validation failed for DLA layer: {_LAYER}\. Switching to GPU fallback"),
    ("refused", rf"Splitting DLA subgraph at: {_LAYER} because DLA validation failed"),
    ("standalone", rf"DLA Standalone is enabled but layer:? {_LAYER} is not supported"),
    ("scale", rf"^(?:Layer )?'?{_LAYER}'? cannot run in INT8 mode due to missing scale and zero point"),
    ("dynamic", rf"^(?:{_LAYER}: )?.*does not support dynamic shapes in any dimension"),
    ("precision", rf"^(?:{_LAYER}: )?.*only supports FP16 and Int8 precision type"),
    ("batch", rf"^(?:{_LAYER}: )?Batch size \(combined volume except for CHW dimensions\)"),
    ("loadables", r"supports only \d+ subgraphs per DLA core"),
    ("implementation", r"Could not find any implementation for node (?P<layer>\{ForeignNode.*?\]\}|.+?)\.?\s*(?:\(|$)"),
    ("device", r"Failure to submit program to DLA engine|Cannot create DLA engine, \d+ not available"),
    ("memory", r"[Oo]ut of memory|OutOfMemory|insufficient memory|cudaErrorMemoryAllocation"),
    ("rule", r"^(?:Activation type|Unary operation): .* is not supported"),
    ("rule", rf"^{_LAYER}: .*(?:only supports|do(?:es)? not support|is not supported)"),
    ("rule", r"DLA.*(?:only supports|do(?:es)? not support|is not supported)"),
    ("rule", r"(?:only supports|do(?:es)? not support|is not supported).*DLA"),
)
_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _RULES)
_RELEVANT = re.compile(
    r"DLA|Dla|\[GpuLayer\]|INT8 mode|FP16 and Int8|implementation for node|[Mm]emory|only supports|not support"
    r"|Batch size \("
)
"""A filter of a build's tens of thousands of verbose lines; nearly all end here."""
_PLACED = re.compile(r"DLA|\[DlaLayer\]|\[GpuLayer\]")
_REASONS = ("rule", "scale", "precision", "dynamic", "batch", "loadables")
_REQUESTED_BYTES = re.compile(r"\((\d+) bytes\)|[Rr]equested size (?:of|was) (\d+)")
_FOREIGN = re.compile(r"^\{ForeignNode\[(.*)\]\}$")


def classify(severity: str, text: str) -> LogRecord:
    """Return the record of a line: its kind, and its layer."""
    relevant = _RELEVANT.search(text) if severity != "VERBOSE" else _PLACED.search(text)
    for kind, pattern in _PATTERNS if relevant else ():
        match = pattern.search(text)
        if match:
            layer = match.groupdict().get("layer") or ""
            return LogRecord(severity, text, kind, layer.strip().strip("'"))
    return LogRecord(severity, text)


def is_retained(record: LogRecord) -> bool:
    """Return whether a record is retained: all but verbose lines without a meaning for edgert."""
    return record.severity != "VERBOSE" or bool(record.kind)


def summary(records: Iterable[LogRecord]) -> dict[str, str]:
    """Return layer, as in the builder's closing summary, → ``dla`` or ``gpu``. Empty without a summary."""
    return {record.layer: record.kind for record in records if record.kind in ("dla", "gpu")}


def reasons(records: Iterable[LogRecord]) -> Mapping[str, str]:
    """Return layer → why it left the DLA: the reason in the log, else the line that reports the move.

    A reason without a layer of its own belongs to the next layer that is moved.
    """
    found: dict[str, str] = {}
    waiting = ""
    for record in records:
        if record.kind in _REASONS and record.layer:
            found[record.layer] = record.text
        elif record.kind in _REASONS:
            waiting = record.text
        elif record.kind in ("moved", "refused") and record.layer:
            found.setdefault(record.layer, waiting or record.text)
            waiting = ""
    return found


def requested_bytes(records: Iterable[LogRecord]) -> int:
    """Return the largest amount in lines about too little memory; 0 where none names an amount.

    TensorRT writes ``Requested amount of GPU memory (123 bytes) could not be allocated``, or ``insufficient memory on
    requested size of 123``.
    """
    texts = (record.text for record in records if record.kind == "memory")
    return max((int(match[1] or match[2]) for text in texts for match in _REQUESTED_BYTES.finditer(text)), default=0)


def foreign_ends(layer: str) -> tuple[str, ...]:
    """Return first and last layer of ``{ForeignNode[first...last]}``, or its only one; empty for another name."""
    match = _FOREIGN.match(layer)
    return tuple(dict.fromkeys(match[1].split("..."))) if match else ()


def tail(records: Iterable[LogRecord], lines: int = 5) -> str:
    """Return the last errors, or else the last lines, joined for a message."""
    lines_read = list(records)
    errors = [record.text for record in lines_read if record.severity in ("ERROR", "INTERNAL_ERROR")]
    chosen = errors or [record.text for record in lines_read if record.severity != "VERBOSE"]
    return " | ".join(chosen[-lines:])


# The logger that TensorRT calls back: its base class is known only when TensorRT is imported.


def logger_to(trt: Trt, sink: Callable[[LogRecord], object]) -> ILogger:
    """Return a logger that passes on retained lines. TensorRT has one logger per process: the first one made."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            record = classify(severity.name, message)
            if is_retained(record):
                sink(record)

    return Logger()


@lru_cache(maxsize=2)
def shared_logger(trt: Trt) -> tuple[ILogger, deque[LogRecord]]:
    """Return the logger of everything that this process opens and runs, and its last lines; clear these first.

    It lives as long as the process: TensorRT writes to the first one that it got, even when its engine is closed.
    """
    lines: deque[LogRecord] = deque(maxlen=200)
    return logger_to(trt, lines.append), lines
