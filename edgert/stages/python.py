"""The user's own stage: a function or an object with ``process``, in the pipeline's thread for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from edgert.errors import ConfigError, StageError
from edgert.runtime import Result, Stage

Function = Callable[[Result], "Result | Iterable[Result] | None"]


class PythonStage:
    """Calls a function for every result.

    The function gets a :class:`~edgert.runtime.Result` and returns it, a changed one (``result.with_output(name,
    record)``), several, or None to let the frame end here. It is the hot path: the frame's arrays are views that are
    valid until it returns, nothing is copied for it, and its time is this stage's busy time.
    """

    def __init__(self, name: str, function: Function) -> None:
        self.name, self._function = name, function

    def open(self) -> None:
        """Nothing to take."""

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        """See :class:`~edgert.runtime.Stage`."""
        out = self._function(result)
        if out is None or isinstance(out, (Result, list, tuple, Iterator)):
            return out
        raise StageError(
            f"stage {self.name!r} returned a {type(out).__name__}",
            why="a python stage returns a Result, a list or generator of them, or None",
            where=f"stage {self.name!r}",
            fix=f"return result.with_output({self.name!r}, value)",
        )

    def close(self) -> None:
        """Nothing to give back."""


def python_stage(name: str, found: object, args: Mapping[str, Any], where: str) -> Stage:
    """A stage from what ``module:name`` named: a class is made with ``args``; a function is called with them bound.

    Raises:
        ConfigError: the class does not take these arguments.
    """
    if isinstance(found, type):
        return _instance(name, found, args, where)
    if not args:
        return PythonStage(name, found)  # type: ignore[arg-type]
    return PythonStage(name, lambda result: found(result, **args))  # type: ignore[operator]


def _instance(name: str, kind: type[Any], args: Mapping[str, Any], where: str) -> Stage:
    try:
        made = kind(**args)
    except TypeError as error:
        raise ConfigError(f"cannot make {kind.__name__} for stage {name!r}", why=str(error), where=where) from error
    return made if isinstance(made, Stage) else PythonStage(name, made)
