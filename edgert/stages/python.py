"""The user's own stage: a function or an object with ``process``, in the pipeline's thread for it."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from edgert.errors import ConfigError, StageError
from edgert.runtime import Detections, Result, Stage

Function = Callable[..., Any]
"""A function of a Result that returns a Result, several, or None."""


class PythonStage:
    """Stage that calls a Python function for every result.

    The function gets a :class:`~edgert.runtime.Result` and returns it, a changed one (``result.with_output(name,
    record)``), several, or None to let the frame end here. It is the hot path: the frame's arrays are views that are
    valid until it returns, nothing is copied for it, and its time is this stage's busy time.

    Args:
        args: further arguments of the function, by name.

    Attributes:
        opened, closed: called in the stage's thread before the first result and after the last.
    """

    def __init__(self, name: str, function: Function, args: Mapping[str, Any] | None = None) -> None:
        self.name, self._function, self._args = name, function, dict(args or {})
        self.opened: Callable[[], object] = _nothing
        self.closed: Callable[[], object] = _nothing

    def open(self) -> None:
        self.opened()

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        """See :class:`~edgert.runtime.Stage`. Raises StageError when something else than results comes back."""
        out = self._function(result, **self._args)
        if out is None or isinstance(out, Result):
            return out
        if isinstance(out, Iterable) and not isinstance(out, (str, bytes, Mapping, Detections)):
            return map(self._checked, out)
        return self._checked(out)

    def close(self) -> None:
        self.closed()

    def _checked(self, out: object) -> Result:
        if isinstance(out, Result):
            return out
        raise StageError(
            f"stage {self.name!r} returned a {type(out).__name__}",
            why="a python stage returns a Result, several, or None",
            where=f"stage {self.name!r}",
            fix=f"return result.with_output({self.name!r}, value)",
        )


def python_stage(name: str, found: object, args: Mapping[str, Any], where: str) -> Stage:
    """Return a stage from the object that ``module:name`` named.

    A class is made with ``args``; its instance is callable, or has ``process``, and optionally ``open`` and ``close``.
    A function is called with ``args`` besides the result.

    Raises:
        ConfigError: it does not take these arguments, or cannot be called with a result.
    """
    if not isinstance(found, type):
        return _function_stage(name, found, args, where)
    try:
        made: object = found(**args)
    except TypeError as error:
        raise ConfigError(f"cannot make {found.__name__} for stage {name!r}", why=str(error), where=where) from error
    if isinstance(made, Stage):
        return made
    stage = _function_stage(name, getattr(made, "process", made), {}, where)
    stage.opened, stage.closed = getattr(made, "open", _nothing), getattr(made, "close", _nothing)
    return stage


def _nothing() -> None:
    """Do nothing, for objects without ``open`` or ``close``."""


def _function_stage(name: str, function: object, args: Mapping[str, Any], where: str) -> PythonStage:
    if not callable(function):
        raise ConfigError(
            f"stage {name!r} got a {type(function).__name__} that cannot be called",
            where=where,
            fix="give the class __call__(self, result) or process(self, result)",
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # functions written in C need not have a signature
        return PythonStage(name, function, args)
    what = f"stage {name!r} cannot call {getattr(function, '__name__', 'its object')}{signature}"
    try:
        signature.bind(None, **args)
    except TypeError as error:
        fix = "it takes a Result first, and the keys under args by name"
        raise ConfigError(what, why=str(error), where=where, fix=fix) from error
    return PythonStage(name, function, args)
