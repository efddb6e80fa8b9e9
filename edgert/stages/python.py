"""Stages of the user's own code: a function, or an object with ``process``."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from edgert.errors import ConfigError, StageError, raised_as
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
        owner: object whose ``open`` and ``close``, where it has them, are called in the stage's thread before the
            first result and after the last.
    """

    def __init__(
        self, name: str, function: Function, args: Mapping[str, Any] | None = None, owner: object = None
    ) -> None:
        self.name, self._function, self._args, self._owner = name, function, dict(args or {}), owner

    def open(self) -> None:
        getattr(self._owner, "open", bool)()

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        """Call the function. Raises StageError when it returns something else than results."""
        out = self._function(result, **self._args)
        if out is None or isinstance(out, Result):
            return out
        if isinstance(out, Iterable) and not isinstance(out, (str, bytes, Mapping, Detections)):
            return map(self._check_result, out)
        return self._check_result(out)

    def close(self) -> None:
        getattr(self._owner, "close", bool)()

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
    title = f"stage {name!r}"
    if not isinstance(found, type):
        return PythonStage(name, check_function(title, found, args, where), args)
    with constructor_errors(f"cannot make {found.__name__} for stage {name!r}", where):
        instance: object = found(**args)
    if isinstance(instance, Stage):
        return instance
    return PythonStage(name, check_function(title, getattr(instance, "process", instance), {}, where), owner=instance)


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
    what = f"{title} cannot call {getattr(checked, '__name__', 'its object')}{signature}"
    fix = "accept a Result as the first argument, and the keys under args: by name"
    with raised_as(ConfigError, what, of=TypeError, where=where, fix=fix):
        signature.bind(None, **args)
    return checked
