"""Saved logs of TensorRT as records."""

import re

from edgert.backend.tensorrt.log import LogRecord, classify


def parse_log(text: str) -> tuple[LogRecord, ...]:
    """A log as ``trtexec`` prints it, ``[03/31/2022-14:34:54] [I] [TRT] …``; other lines are left out."""
    return tuple(classify(_SEVERITY[match[1]], match[2]) for match in _LINE.finditer(text))


_SEVERITY = {"F": "INTERNAL_ERROR", "E": "ERROR", "W": "WARNING", "I": "INFO", "V": "VERBOSE"}
_LINE = re.compile(r"^(?:\[[\d/:\- ]+\] )?\[([FEWIV])\] \[TRT\] ?(.*)$", re.MULTILINE)
