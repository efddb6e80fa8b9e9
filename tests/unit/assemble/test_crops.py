"""Which stages look at crops of the same frames, one behind the other or beside it."""

from typing import Any

import pytest

from edgert.assemble.crops import crop_chains, crop_siblings
from edgert.config.stages import InferStage, SinkStage


def look(*inputs: str, **keys: Any) -> InferStage:
    return InferStage.model_validate({"infer": "net", "from": list(inputs), "crop": {}, **keys})


FIND = InferStage.model_validate({"infer": "net", "from": "cam"})
OUT = SinkStage.model_validate({"sink": "null", "from": "b"})


@pytest.mark.parametrize(
    ("stages", "wanted"),
    [
        ({"a": look("find"), "b": look("a"), "c": look("b")}, [["a", "b", "c"]]),
        ({"a": look("find"), "b": look("a"), "out": OUT}, [["a", "b"]]),
        ({"a": look("find"), "b": look("a"), "out": SinkStage.model_validate({"sink": "null", "from": "a"})}, []),
        ({"a": look("find"), "b": look("find")}, []),
        ({"a": look("find"), "b": look("a", "find")}, []),
        ({"a": look("find"), "b": look("a", every=2)}, []),
        ({"a": look("find", every=2), "b": look("a", every=2)}, [["a", "b"]]),
        ({"a": look("find"), "b": InferStage.model_validate({"infer": "net", "from": "a"}), "c": look("b")}, []),
    ],
)
def test_each_must_be_alone_in_listening_to_the_one_before(stages: dict[str, Any], wanted: list[list[str]]) -> None:
    cam: Any = {"cam": FIND.model_copy(update={"inputs": ()})}
    assert crop_chains({**cam, "find": FIND, **stages}) == wanted


@pytest.mark.parametrize(
    ("stages", "wanted"),
    [
        ({"a": look("find"), "b": look("find"), "c": look("find", crop={"limit": 2})}, [["a", "b", "c"]]),
        ({"a": look("find"), "b": look("a"), "c": look("find"), "d": look("a")}, [["a", "c"], ["b", "d"]]),
        ({"a": look("find"), "b": look("find", every=2)}, []),
        ({"a": look("find"), "b": look("find", drop="oldest")}, []),
        ({"a": look("find", queue=2), "b": look("find", queue=3)}, []),
        ({"a": look("find"), "b": look("find", "cam")}, []),
        ({"a": look("find"), "b": InferStage.model_validate({"infer": "net", "from": "find"})}, []),
    ],
)
def test_siblings_listen_to_one_stage_alone_and_alike(stages: dict[str, Any], wanted: list[list[str]]) -> None:
    cam: Any = {"cam": FIND.model_copy(update={"inputs": ()})}
    assert crop_siblings({**cam, "find": FIND, **stages}) == wanted
