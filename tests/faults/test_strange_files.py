"""Models and YAML files that are damaged, or made to break something: an error that names it, never a traceback."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

import edgert
from edgert.cli import app
from edgert.errors import ConfigError, EdgertError

F32 = TensorProto.FLOAT
value, node, tensor = helper.make_tensor_value_info, helper.make_node, helper.make_tensor
IMAGE, ANY = [value("x", F32, [1, 3, 8, 8])], [value("y", F32, None)]
RELU = [node("Relu", ["x"], ["y"])]
STANDARD = helper.make_opsetid("", 17)
OWN = helper.make_opsetid("f", 1)


def made(
    nodes: Sequence[Any],
    inputs: Sequence[Any] = IMAGE,
    outputs: Sequence[Any] = ANY,
    stored: Sequence[Any] = (),
    functions: Sequence[Any] = (),
    names: str = "",
) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(stored))
    model = helper.make_model(graph, opset_imports=[STANDARD, *([OWN] if functions else [])], functions=functions)
    for key in ("names", "imgsz") if names else ():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, names
    return bytes(model.SerializeToString())


def resized(factor: float) -> bytes:
    scales = tensor("s", F32, [4], [1, 1, factor, factor])
    return made([node("Resize", ["x", "", "s"], ["y"])], stored=[scales])


def called(depth: int) -> bytes:
    """Functions that each call the one before twice: 2^depth nodes, were they put in place."""
    bodies = [[node("Relu", ["a"], ["b"])]]
    for at in range(1, depth):
        inner = [node(f"F{at - 1}", [source], [end], domain="f") for source, end in (("a", "t"), ("t", "b"))]
        bodies.append(inner)
    parts = [helper.make_function("f", f"F{at}", ["a"], ["b"], body, [STANDARD, OWN]) for at, body in enumerate(bodies)]
    return made([node(f"F{depth - 1}", ["x"], ["y"], domain="f")], functions=parts)


def calls_itself() -> bytes:
    body = [node("R", ["a"], ["b"], domain="f")]
    part = helper.make_function("f", "R", ["a"], ["b"], body, [STANDARD, OWN])
    return made([node("R", ["x"], ["y"], domain="f")], functions=[part])


def external(**facts: str) -> bytes:
    stored = onnx.TensorProto(name="w", data_type=F32, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, text in facts.items():
        entry = stored.external_data.add()
        entry.key, entry.value = key, text
    return made([node("Add", ["x", "w"], ["y"])], [value("x", F32, [1, 4])], stored=[stored])


def zeros(name: str, *shape: int) -> Any:
    count = 1
    for size in shape:
        count *= size
    return tensor(name, F32, shape, [0.0] * count)


def not_text() -> bytes:
    relu = node("Relu", ["x"], ["y"])
    attribute = relu.attribute.add()
    attribute.name, attribute.type, attribute.s = "s", onnx.AttributeProto.STRING, b"\xff\xfe"
    return made([relu])


LSTM = node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4)
TEXT = [value("x", TensorProto.STRING, [1, 4])], [value("y", TensorProto.STRING, [1, 4])]
MODELS = {
    "an input of 40 GiB": made(RELU, [value("x", F32, [1, 3, 60000, 60000])]),
    "an image of 2^72 pixels": resized(2.0**33),
    "an image of no pixels": resized(0.0),
    "an image of less than a pixel": resized(1e-9),
    "2^40 calls": called(40),
    "a function that calls itself": calls_itself(),
    "names: a list as key": made(RELU, names="{[]:1}"),
    "names: 6000 signs": made(RELU, names="-" * 6000 + "1"),
    "names: a long sum": made(RELU, names="+".join(["1j"] * 3000)),
    "names: 3000 brackets": made(RELU, names="(" * 3000),
    "an offset of 5000 digits": external(location="w.bin", offset="9" * 5000, length="16"),
    "data in a circle of links": external(location="one", offset="0", length="16"),
    "Gemm of four dimensions": made([node("Gemm", ["x", "w"], ["y"])], stored=[zeros("w", 8, 4)]),
    "LSTM of four dimensions": made([LSTM], stored=[zeros("w", 1, 16, 8), zeros("r", 1, 16, 4)]),
    "no nodes": made([], [value("x", F32, [1, 4])], [value("x", F32, [1, 4])]),
    "an attribute that is not text": not_text(),
    "text as input": made([node("Identity", ["x"], ["y"])], *TEXT),
    "an input without type": made(RELU, [onnx.ValueInfoProto(name="x")]),
    "a name that clears the terminal": made([node("Relu", ["x"], ["y"], name="\x1b[2J\x1b]52;c;aGk=\x07")]),
    "nothing": b"",
}
PIPELINE = """
schema: 1
name: strange
models: {m: {onnx: model.onnx, task: {embed: none}}}
stages: {c: {source: api}, i: {infer: m, from: c}, o: {sink: null, from: i}}
"""


def asked(*arguments: str) -> str:
    """The message of a command that was refused; empty where it was not. Fails for anything else."""
    done = CliRunner().invoke(app, arguments)
    assert "\x1b" not in done.output
    if done.exception is None or isinstance(done.exception, SystemExit):
        return ""
    if not isinstance(done.exception, EdgertError):
        raise done.exception
    return str(done.exception)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    (tmp_path / "strange.yaml").write_text(PIPELINE)
    yield tmp_path
    assert {one.name for one in tmp_path.iterdir()} <= {"one", "two", "strange.yaml", "model.onnx"}


@pytest.mark.parametrize("what", MODELS)
def test_a_strange_model_is_refused_by_name_or_taken(what: str, folder: Path) -> None:
    model, file = folder / "model.onnx", str(folder / "strange.yaml")
    model.write_bytes(MODELS[what])
    verbs = ["inspect", str(model)], ["inspect", str(model), "--dla", "orin"], ["validate", file]
    for arguments in (*verbs, ["plan", file, "--board", "orin-nx-16gb"]):
        message = asked(*arguments)
        assert len(message) < 3000
        assert "\x1b" not in message


@pytest.mark.parametrize(
    "mistake",
    [
        "models.m.onnx=" + "x" * 5000,
        'models.m.task.labels="a\\0b"',
        "models.m.onnx=~nobodyofthatname/x",
        "models.m.onnx=" + "x/" * 3000,
    ],
)
def test_a_path_that_no_system_takes(mistake: str, folder: Path) -> None:
    (folder / "model.onnx").write_bytes(MODELS["no nodes"])
    assert "expected a path" in asked("validate", str(folder / "strange.yaml"), "--set", mistake)


@pytest.mark.parametrize("text", ["name: " + "[" * 100_000, "name: " + "[" * 100 + "]" * 100, "- " * 50_000])
def test_a_board_file_that_is_nested_too_deeply(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    assert "nested too deeply" in asked("boards", str(tmp_path / "mine.yaml"))


def test_a_profile_that_is_nested_too_deeply(folder: Path) -> None:
    profile = folder.parent / "profile.json"
    profile.write_text("[" * 100_000)
    (folder / "model.onnx").write_bytes(made(RELU))
    assert "cannot read profile" in asked("plan", str(folder / "strange.yaml"), "--profile", str(profile))


@pytest.mark.parametrize("degrees", [120_000, -500, float("nan")])
def test_a_simulation_of_what_cannot_be(degrees: float) -> None:
    with pytest.raises(ConfigError, match="cannot simulate"):
        edgert.Scenario(ambient_c=degrees)


@pytest.mark.parametrize("given", ["--duration=1e30", "--duration=inf"])
def test_a_simulation_for_what_is_no_number(given: str, folder: Path) -> None:
    (folder / "model.onnx").write_bytes(made(RELU))
    done = CliRunner().invoke(app, ["simulate", str(folder / "strange.yaml"), "--board", "orin-nx-16gb", given])
    assert done.exit_code == 2 and "is not a number from" in done.output
