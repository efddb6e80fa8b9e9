"""Parser of TensorRT's log, which recognizes lines about where layers run, and why.

TensorRT never raises an error when it moves a layer from the DLA to the GPU; it writes a line. The patterns are from
logs of 8.4 to 10.7 that users have published (issues of NVIDIA/TensorRT, NVIDIA-AI-IOT/jetson_dla_tutorial).
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from edgert.backend.tensorrt.library import ILogger, Trt

Kind = Literal["", "moved", "refused", "reason", "implementation", "memory", "dla", "gpu"]
"""Meaning of a line. ``moved``: a layer was moved from the DLA to the GPU. ``refused``: the DLA compiler refused a
layer after the static check. ``reason``: why a layer cannot run on the DLA. ``implementation``: a layer or region has
no implementation. ``memory``: too little memory. ``dla``, ``gpu``: the layer runs there, by the closing summary. Empty:
not relevant to edgert."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One line of the log.

    ``severity`` is ``INTERNAL_ERROR`` to ``VERBOSE``; ``layer`` is TensorRT's name, empty if the line names none.
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
    ("reason", rf"DLA Standalone is enabled but layer:? {_LAYER} is not supported"),
    ("reason", rf"^(?:Layer )?'?{_LAYER}'? cannot run in INT8 mode due to missing scale and zero point"),
    ("reason", rf"^(?:{_LAYER}: )?.*does not support dynamic shapes in any dimension"),
    ("reason", rf"^(?:{_LAYER}: )?.*only supports FP16 and Int8 precision type"),
    ("reason", rf"^(?:{_LAYER}: )?Batch size \(combined volume except for CHW dimensions\)"),
    ("reason", r"supports only \d+ subgraphs per DLA core"),
    ("implementation", r"Could not find any implementation for node (?P<layer>\{ForeignNode.*?\]\}|.+?)\.?\s*(?:\(|$)"),
    ("memory", r"[Oo]ut of memory|OutOfMemory|insufficient memory|cudaErrorMemoryAllocation"),
    ("reason", r"^(?:Activation type|Unary operation): .* is not supported"),
    ("reason", rf"^{_LAYER}: .*(?:only supports|do(?:es)? not support|is not supported)"),
    ("reason", r"DLA.*(?:only supports|do(?:es)? not support|is not supported)"),
    ("reason", r"(?:only supports|do(?:es)? not support|is not supported).*DLA"),
)
_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _RULES)
_RELEVANT = re.compile(
    r"DLA|Dla|\[GpuLayer\]|INT8 mode|FP16 and Int8|implementation for node|[Mm]emory|only supports|not support"
    r"|Batch size \("
)
"""Filter that discards nearly all of a build's tens of thousands of verbose lines."""
_VERBOSE_RELEVANT = re.compile(r"DLA|\[DlaLayer\]|\[GpuLayer\]")
_REQUESTED_BYTES = re.compile(r"\((\d+) bytes\)|[Rr]equested size (?:of|was) (\d+)")
_FOREIGN = re.compile(r"^\{ForeignNode\[(.*)\]\}$")


def classify(severity: str, text: str) -> LogRecord:
    """Return the record of a line, with its kind and layer."""
    relevant = (_VERBOSE_RELEVANT if severity == "VERBOSE" else _RELEVANT).search(text)
    for kind, pattern in _PATTERNS if relevant else ():
        match = pattern.search(text)
        if match:
            layer = match.groupdict().get("layer") or ""
            return LogRecord(severity, text, kind, layer.strip().strip("'"))
    return LogRecord(severity, text)


def is_retained(record: LogRecord) -> bool:
    """Return whether a record is retained, as all are but verbose lines of no kind."""
    return record.severity != "VERBOSE" or bool(record.kind)


def logged_accelerators(records: Iterable[LogRecord]) -> dict[str, str]:
    """Return ``dla`` or ``gpu`` by layer, from the builder's closing summary; empty without a summary."""
    return {record.layer: record.kind for record in records if record.kind in ("dla", "gpu")}


def why_off_dla(records: Iterable[LogRecord]) -> Mapping[str, str]:
    """Return why layers left the DLA, by layer: the reason in the log, else the line that reports the move.

    A reason that names no layer belongs to the next layer that is moved.
    """
    reasons: dict[str, str] = {}
    pending = ""
    for record in records:
        if record.kind == "reason" and record.layer:
            reasons[record.layer] = record.text
        elif record.kind == "reason":
            pending = record.text
        elif record.kind in ("moved", "refused") and record.layer:
            reasons.setdefault(record.layer, pending or record.text)
            pending = ""
    return reasons


def requested_bytes(records: Iterable[LogRecord]) -> int:
    """Return the largest amount in lines about too little memory; 0 if none names an amount.

    TensorRT writes ``Requested amount of GPU memory (123 bytes) could not be allocated``, or ``insufficient memory on
    requested size of 123``.
    """
    texts = (record.text for record in records if record.kind == "memory")
    return max((int(match[1] or match[2]) for text in texts for match in _REQUESTED_BYTES.finditer(text)), default=0)


def foreign_ends(layer: str) -> tuple[str, ...]:
    """Return the first and the last layer of ``{ForeignNode[first...last]}``, or its only one; else nothing."""
    match = _FOREIGN.match(layer)
    return tuple(dict.fromkeys(match[1].split("..."))) if match else ()


def tail(records: Iterable[LogRecord], lines: int = 5) -> str:
    """Return the last errors, or without errors the last lines, joined for a message."""
    records = list(records)
    errors = [record.text for record in records if record.severity in ("ERROR", "INTERNAL_ERROR")]
    chosen = errors or [record.text for record in records if record.severity != "VERBOSE"]
    return " | ".join(chosen[-lines:])


# The logger that TensorRT calls, defined in a function as its base class exists only once TensorRT is imported.


def create_logger(trt: Trt, sink: Callable[[LogRecord], object]) -> ILogger:
    """Return a logger that passes retained lines to ``sink``. A process has one logger: TensorRT uses the first."""

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
    """Return the logger of all engines that this process opens and runs, and its last lines; clear these before use.

    It lives as long as the process, as TensorRT keeps writing to its first logger after the engine is closed.
    """
    lines: deque[LogRecord] = deque(maxlen=200)
    return create_logger(trt, lines.append), lines
