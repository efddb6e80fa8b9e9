"""Custom operators: what is registered, what is refused, and what follows from their rules."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgert
from edgert.custom_op import Operator, load_operators, operator
from edgert.errors import ConfigError, ModelError
from edgert.graph import infer, outputs, read, with_shapes
from tests.helpers.models import conv
from tests.helpers.operators import example, network, only_here
from tests.helpers.pipeline_text import MINIMAL, pipeline


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    with only_here():
        yield


def known(name: str) -> Operator:
    found = operator(*name.split("::"))
    assert found is not None
    return found


def test_a_function_is_registered_and_stays_a_function() -> None:
    @edgert.op("test::Scale", dtypes=["float32"])
    def scale(x: np.ndarray, *, by: float = 2.0, mode: str = "up") -> np.ndarray:
        return x * by

    found = known("test::Scale")
    assert (found.inputs, found.outputs) == (("x",), ("y",))
    assert found.settings({"mode": b"down"}, "n") == {"by": 2.0, "mode": "down"}
    assert scale(np.float32([3])).tolist() == [6]
    assert found([np.ones(2, np.float32)], {"by": 3.0, "mode": ""})[0].tolist() == [3, 3]


def test_shapes_and_types_follow_from_rules() -> None:
    @edgert.op(
        "test::Split", outputs=["a", "b"], shape=lambda x, *, at=1: [(at,), (x[0] - at,)], dtype=lambda x: "int32"
    )
    def split(x: np.ndarray, *, at: int = 1) -> list[np.ndarray]:
        return [x[:at], x[at:]]

    found = known("test::Split")
    assert found.shapes([(5,)], {"at": 2}) == [(2,), (3,)]
    with pytest.raises(ModelError, match="node 'n': test::Split has int8 inputs") as caught:
        found.result_dtypes(["int8"], "n")
    assert caught.value.why == "it takes float32"


@pytest.mark.parametrize(
    ("name", "options", "what"),
    [
        ("Scale", {}, "'Scale' is no name for an operator"),
        ("ai.onnx::Scale", {}, "'ai.onnx::Scale' is no name for an operator"),
        ("a::B", {"dtypes": ["float31"]}, "a::B cannot take 'float31'; did you mean 'float32'?"),
    ],
)
def test_what_cannot_be_an_operator_is_refused(name: str, options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        edgert.op(name, **options)
    assert caught.value.what.startswith(what) and caught.value.fix


def test_attributes_need_defaults_and_inputs_names() -> None:
    with pytest.raises(ConfigError, match="the function of a::B cannot be an operator") as caught:
        edgert.op("a::B")(lambda x, *, by: x)
    assert caught.value.why == "attribute 'by' has no number or text as its default"
    with pytest.raises(ConfigError) as caught:
        edgert.op("a::B")(lambda *x: x)
    assert caught.value.why == "its inputs must be named"


def test_an_attribute_that_it_does_not_have_is_told_with_the_nearest() -> None:
    example()
    with pytest.raises(ModelError, match="no attribute 'alpah'; did you mean 'alpha'"):
        known("demo::HardMishLite").settings({"alpah": 1}, "n")


def test_two_files_cannot_have_one_operator(tmp_path: Path) -> None:
    text = "import edgert\n@edgert.op('test::Twice')\ndef twice(x):\n    return x\n"
    (tmp_path / "first_ops.py").write_text(text)
    (tmp_path / "second_ops.py").write_text(f"{text}\n")
    with pytest.raises(ConfigError, match="module 'second_ops' fails when it is imported") as caught:
        load_operators([tmp_path / "first_ops.py", tmp_path / "second_ops.py"])
    assert "operator test::Twice is registered twice" in caught.value.why


def test_the_same_file_elsewhere_is_the_same_operators(tmp_path: Path) -> None:
    """A pipeline and its bundle may run in one process."""
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same_ops.py").write_text(
            "import edgert\n@edgert.op('test::Same')\ndef same(x):\n    return x\n"
        )
        load_operators([tmp_path / folder / "same_ops.py"])
    assert known("test::Same").file == tmp_path / "there" / "same_ops.py"


def test_types_behind_it_are_known() -> None:
    model = network(("n", 3, "h", "w"), ["HardMishLite", "HardMishLite"])
    graph = read(model)
    assert list(graph.custom_operators) == ["own0", "own1"]
    assert graph.specs["t2"].shape[:2] == ("n", 4) and graph.specs["t2"].dtype == "float32"
    assert outputs(with_shapes(model, {"x": (2, 3, 6, 6)}))[0].shape == (2, 4, 1, 1)
    assert read(infer(network())).specs["t1"].shape == (1, 4, 8, 8)


def test_a_shape_rule_tells_sizes_once_the_input_has_them() -> None:
    @edgert.op("demo::Halve", shape=lambda x, *, alpha=0.0: (*x[:2], x[2] // 2, x[3] // 2))
    def halve(x: np.ndarray, *, alpha: float = 0.0) -> np.ndarray:
        return x[..., ::2, ::2]

    assert read(network(ops=["Halve"])).specs["t1"].shape == (1, 4, 4, 4)
    assert not read(network((1, 3, "h", 8), ["Halve"])).specs["t1"].ranked


def test_a_model_without_one_has_none() -> None:
    assert read(conv()).custom_operators == {}


def test_ops_of_a_pipeline_file_are_imported(tmp_path: Path) -> None:
    (tmp_path / "own_ops.py").write_text("import edgert\n@edgert.op('test::Own')\ndef own(x):\n    return x\n")
    config = pipeline(tmp_path, f"ops: [own_ops.py]\n{MINIMAL}").config
    assert config.ops == (tmp_path / "own_ops.py",) and known("test::Own").file == tmp_path / "own_ops.py"


@pytest.mark.parametrize(
    ("ops", "what"),
    [("[none.py]", "cannot read '"), ("[broken_ops.py]", "module 'broken_ops' fails when it is imported")],
)
def test_ops_that_cannot_be_imported_are_told_with_their_line(tmp_path: Path, ops: str, what: str) -> None:
    (tmp_path / "broken_ops.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError) as caught:
        pipeline(tmp_path, f"ops: {ops}\n{MINIMAL}")
    assert caught.value.what.startswith(what) and "p.yaml:1 ops" in caught.value.where
