"""TensorRT's log, handed on: an object that TensorRT calls back, made when its module is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgert.backend.trt.log import LogRecord, classify, is_worth_keeping
from edgert.backend.trt.vendor import ILogger, Trt


def logger_to(trt: Trt, sink: Callable[[LogRecord], object]) -> ILogger:
    """A logger that hands on what is worth keeping. TensorRT has one logger per process; the first one made wins."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            record = classify(severity.name, message)
            if is_worth_keeping(record):
                sink(record)

    return Logger()
