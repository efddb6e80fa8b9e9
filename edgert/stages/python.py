"""Stages of the user's own code: a function, or an object with ``process``."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from edgert.errors import ConfigError, StageError
from edgert.runtime import Detections, Result, Stage
from edgert.user_code import constructor_errors

Function = Callable[..., Any]
"""Function of a Result that returns a Result, several, or None."""


class PythonStage:
    """Stage that calls a Python function for every result.

    The function gets a :class:`~edgert.runtime.Result` and returns it, a changed one (``result.with_output(name,
    record)``), several, or None to end the frame here. It is the hot path: the frame's arrays are views that are valid
    until it returns, nothing is copied for it, and its time is this stage's busy time.

    Args:
        args: further arguments of the function, by name.

    Attributes:
        on_open, on_close: functions called in the stage's thread before the first result and after the last.
    """

    def __init__(self, name: str, function: Function, args: Mapping[str, Any] | None = None) -> None:
        self.name, self._function, self._args = name, function, dict(args or {})
        self.on_open: Callable[[], object] = _nothing
        self.on_close: Callable[[], object] = _nothing

    def open(self) -> None:
        self.on_open()

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        """Call the function. Raises StageError when it returns something else than results."""
        out = self._function(result, **self._args)
        if out is None or isinstance(out, Result):
            return out
        if isinstance(out, Iterable) and not isinstance(out, (str, bytes, Mapping, Detections)):
            return map(self._check_result, out)
        return self._check_result(out)

    def close(self) -> None:
        self.on_close()

    def _check_result(self, out: object) -> Result:
        if isinstance(out, Result):
            return out
        raise StageError(
            f"stage {self.name!r} returned {type(out).__name__}",
            why="a python stage returns a Result, several, or None",
            where=f"stage {self.name!r}",
            fix=f"return result.with_output({self.name!r}, value)",
        )


def python_stage(name: str, found: object, args: Mapping[str, Any], where: str) -> Stage:
    """Return a stage for the object that ``module:name`` names.

    A class is instantiated with ``args``; its instance is callable, or has ``process``, and optionally ``open`` and
    ``close``. A function is called with ``args`` in addition to the result.

    Raises ConfigError: the object cannot be made with these arguments, or cannot be called with a result.
    """
    if not isinstance(found, type):
        return _function_stage(name, found, args, where)
    with constructor_errors(f"cannot make {found.__name__} for stage {name!r}", where):
        instance: object = found(**args)
    if isinstance(instance, Stage):
        return instance
    stage = _function_stage(name, getattr(instance, "process", instance), {}, where)
    stage.on_open, stage.on_close = getattr(instance, "open", _nothing), getattr(instance, "close", _nothing)
    return stage


def _nothing() -> None:
    """Do nothing, for objects without ``open`` or ``close``."""


def _function_stage(name: str, function: object, args: Mapping[str, Any], where: str) -> PythonStage:
    return PythonStage(name, check_function(f"stage {name!r}", function, args, where), args)


def check_function(title: str, function: Any, args: Mapping[str, Any], where: str) -> Function:
    """Return the function; ``title`` says what calls it.

    Raises ConfigError: it cannot be called with a result and these arguments, or is ``async``.
    """
    if not callable(function):
        what = f"{title} got {type(function).__name__}, which cannot be called"
        fix = "give a function, or an object with __call__(self, result) or process(self, result)"
        raise ConfigError(what, where=where, fix=fix)
    checked: Function = function
    if inspect.iscoroutinefunction(checked):
        why, fix = "the thread that calls it has no event loop", "use def, or pipeline.aresults(…) in asyncio"
        raise ConfigError(f"{title} got an async function", why=why, where=where, fix=fix)
    try:
        signature = inspect.signature(checked)
    except (TypeError, ValueError):  # functions written in C may have no signature
        return checked
    try:
        signature.bind(None, **args)
    except TypeError as error:
        what = f"{title} cannot call {getattr(checked, '__name__', 'its object')}{signature}"
        fix = "accept a Result as the first argument, and the keys under args: by name"
        raise ConfigError(what, why=str(error), where=where, fix=fix) from error
    return checked
