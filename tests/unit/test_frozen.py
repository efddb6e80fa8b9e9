import copy
import inspect
from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from edgert.frozen import with_fast_init
from edgert.runtime import Frame, Result
from edgert.stages.source.timeline import Image


@with_fast_init
@dataclass(frozen=True, slots=True, eq=False)
class Point:
    x: int
    y: int = 2
    tags: dict[str, int] = field(default_factory=dict)


@with_fast_init
@dataclass(frozen=True, slots=True, eq=False)
class Named(Point):
    name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Plain(Point):
    weight: int = 0


@dataclass(frozen=True)
class Same(Point): ...


@pytest.mark.parametrize("kind", [Point, Named, Plain, Same])
def test_fields_are_set_and_defaults_are_each_ones_own(kind: type[Point]) -> None:
    one, other = kind(1), kind(3, y=4, tags={"a": 1})
    assert type(one) is kind
    assert (one.x, one.y, one.tags) == (1, 2, {})
    assert (other.x, other.y, other.tags) == (3, 4, {"a": 1})
    assert one.tags is not kind(1).tags


@pytest.mark.parametrize("kind", [Point, Named, Plain, Same])
def test_it_is_frozen_once_it_is_made(kind: type[Point]) -> None:
    one = kind(1)
    with pytest.raises(FrozenInstanceError):
        one.x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del one.x
    assert not hasattr(one, "__dict__") or kind is Same


def test_a_subclass_has_its_own_fields() -> None:
    assert Named(1, name="n").name == "n"
    assert isinstance(Named(1), Point)
    assert Plain(1, weight=3).weight == 3


@pytest.mark.parametrize("wrong", [{}, {"x": 1, "z": 2}])
def test_arguments_are_checked(wrong: dict[str, int]) -> None:
    with pytest.raises(TypeError):
        Point(**wrong)


def test_it_is_a_dataclass_as_any() -> None:
    one = replace(Named(1, name="n"), y=5)
    assert repr(one) == "Named(x=1, y=5, tags={}, name='n')"
    assert type(copy.copy(one)) is Named
    assert [*inspect.signature(Point).parameters] == ["x", "y", "tags"]


@pytest.mark.parametrize("kind", [Frame, Result, Image])
def test_what_comes_with_every_frame_is_made_so(kind: type) -> None:
    assert "open_class" in kind.__init__.__globals__  # type: ignore[misc]
