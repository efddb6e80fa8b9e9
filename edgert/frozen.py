"""Faster ``__init__`` for frozen dataclasses of which several objects are made for every frame.

The ``__init__`` of a frozen dataclass calls ``object.__setattr__`` for each field. This one fills an object of a class
with the same slots that is not frozen, and then changes its class. It takes one to two thirds of the time
(``tests/bench/bench_frozen.py``).
"""

from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

T = TypeVar("T")


def with_fast_init(cls: type[T]) -> type[T]:
    """Give a frozen, slotted dataclass a faster ``__init__``; a decorator.

    Its bases must be frozen and slotted, too, and it must have no ``__post_init__``. Subclasses keep the ordinary
    ``__init__`` unless they are decorated.
    """
    known = fields(cls)  # type: ignore[arg-type]  # it is a dataclass
    body = {"__slots__": cls.__dict__["__slots__"], "__setattr__": object.__setattr__}
    scope: dict[str, Any] = {
        "set_class": object.__setattr__,
        "open_class": type(f"{cls.__name__}Open", cls.__bases__, body),
        "frozen_class": cls,
        "slow": cls.__init__,
        "MISSING": MISSING,
        **{f"default_{one.name}": one.default for one in known},
        **{f"make_{one.name}": one.default_factory for one in known},
    }
    lines = [
        f"def __init__(self, {', '.join(map(_parameter, known))}):",
        "    if type(self) is not frozen_class:",
        f"        return slow(self, {', '.join(map(_value, known))})",
        "    set_class(self, '__class__', open_class)",
        *(f"    self.{one.name} = {_value(one)}" for one in known),
        "    self.__class__ = frozen_class",
    ]
    exec("\n".join(lines), scope)  # noqa: S102 - as dataclasses themselves do; only names of fields are in it
    written = scope["__init__"]
    written.__qualname__, written.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    written.__annotations__, written.__doc__ = cls.__init__.__annotations__, cls.__init__.__doc__
    cls.__init__ = written  # type: ignore[method-assign]
    return cls


def _parameter(one: Field[Any]) -> str:
    if one.default_factory is not MISSING:
        return f"{one.name}=MISSING"
    return one.name if one.default is MISSING else f"{one.name}=default_{one.name}"


def _value(one: Field[Any]) -> str:
    made = f"make_{one.name}() if {one.name} is MISSING else "
    return f"{made if one.default_factory is not MISSING else ''}{one.name}"
