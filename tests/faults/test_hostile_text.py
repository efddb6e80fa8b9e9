"""Texts of a model, its labels and its pipeline that would steer a terminal: no verb prints them as they are."""

import io
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import onnx
import pytest
from onnx import helper

from edgert.cli import app
from edgert.errors import CONTROL, EdgertError
from tests.faults.fuzz import seeds
from tests.faults.fuzz.formats import command
from tests.helpers.command import environment

HOSTILE = {
    "clear": "\x1b[2J",
    "clipboard": "\x1b]52;c;aGk=\x07",
    "C1 sequence": "\x9b31m",
    "NUL": "a\0b",
    "over the line": "evil\rgood",
    "reversed": "\u202egnp.exe",
    "isolated": "\u2066x\u2069",
}
Place = Callable[[onnx.ModelProto, str], None]


def _metadata(model: onnx.ModelProto, text: str) -> None:
    del model.metadata_props[:]
    entry = model.metadata_props.add()
    entry.key, entry.value = "names", repr({0: text, 1: "b", 2: "c", 3: "d"})  # a literal of Python, as exporters do


def _raw_metadata(model: onnx.ModelProto, text: str) -> None:
    entry = model.metadata_props.add()
    entry.key, entry.value = "author", text


def _tensor(model: onnx.ModelProto, text: str) -> None:
    old, text = model.graph.node[2].output[0], f"t{text}"
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [text if name == old else name for name in names]


def _function(model: onnx.ModelProto, text: str) -> None:
    body = [helper.make_node("Identity", ["a"], [text]), helper.make_node("Relu", [text], ["b"], name=text)]
    opset = helper.make_opsetid("", 17)
    model.functions.append(helper.make_function("own", "Relu2", ["a"], ["b"], body, [opset]))
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node[2].domain, model.graph.node[2].op_type = "own", "Relu2"


def _branch(model: onnx.ModelProto, text: str) -> None:
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Identity", ["x"], [text], name=text)], text, [], [onnx.ValueInfoProto(name=text)]
        )
        for name in ("then", "else")
    }
    yes = helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("v", onnx.TensorProto.BOOL, [], [True]))
    model.graph.node.insert(0, helper.make_node("If", ["yes"], ["unused"], **branches))
    model.graph.node.insert(0, yes)


PLACES: dict[str, Place] = {
    "node": lambda model, text: setattr(model.graph.node[0], "name", text),
    "operator": lambda model, text: setattr(model.graph.node[0], "op_type", text),
    "domain": lambda model, text: setattr(model.graph.node[0], "domain", text),
    "tensor": _tensor,
    "stored tensor": lambda model, text: setattr(model.graph.initializer[0], "name", text),
    "input": lambda model, text: setattr(model.graph.input[0], "name", text),
    "dimension": lambda model, text: setattr(model.graph.input[0].type.tensor_type.shape.dim[0], "dim_param", text),
    "graph": lambda model, text: setattr(model.graph, "name", text),
    "producer": lambda model, text: setattr(model, "producer_name", text),
    "version": lambda model, text: setattr(model, "producer_version", text),
    "model's domain": lambda model, text: setattr(model, "domain", text),
    "documentation": lambda model, text: setattr(model, "doc_string", text),
    "attribute": lambda model, text: setattr(model.graph.node[0].attribute.add(), "name", text),
    "attribute's text": lambda model, text: model.graph.node[3].attribute.append(
        helper.make_attribute("auto_pad", text)
    ),
    "labels as metadata": _metadata,
    "metadata": _raw_metadata,
    "function": _function,
    "branch": _branch,
}
VERBS = (
    "inspect x.onnx --ops",
    "inspect x.onnx --dla --board orin-nx-16gb --explain --all",
    "new x.onnx -o made.yaml --force",
    "validate h.yaml",
    "check h.yaml --images photos/0.png",
    "plan h.yaml --board orin-nx-16gb --mode 15W",
    "simulate h.yaml --board orin-nx-16gb --mode 15W --duration 0.1",
    "calibrate h8.yaml -o out/r.json",
    "quantize h8.yaml -o out/q.onnx",
    "build h.yaml -o out/x.edgert",
    "export h.yaml --format onnx -o out/e",
    "run h.yaml --plain",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("hostile")
        patch.chdir(folder)
        patch.setenv("EDGERT_CACHE", str(folder / "cache"))
        seeds.around()
        for made, source in (("h.yaml", "f.yaml"), ("h8.yaml", "p.yaml")):
            Path(made).write_text(Path(source).read_text().replace("m.onnx", "x.onnx"))
        yield folder


def printed(*words: str) -> str:
    """All that a verb prints, an error's message too; of the product's own bugs, nothing is caught."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out), suppress(SystemExit):
        try:
            command().main(list(words), "edgert")
        except EdgertError as error:
            out.write(str(error))
    return out.getvalue()


def steers(text: str) -> str:
    found = CONTROL.search(text)
    return repr(text[max(found.start() - 60, 0) : found.end() + 20]) if found else ""


_connections: list[str] | None = None


def _connecting(event: str, arguments: tuple[object, ...]) -> None:
    if _connections is None or event not in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        return  # the hook stays for good: asking anything of other events' arguments would come back here
    if getattr(arguments[0], "family", None) != socket.AF_UNIX:  # the control socket of another run
        _connections.append(f"{event} {arguments}")


@pytest.fixture
def connections() -> Iterator[list[str]]:
    """Connections and look-ups of names that the process makes meanwhile."""
    global _connections
    sys.addaudithook(_connecting)  # for ever: this fixture is asked for once
    _connections = []
    yield _connections
    _connections = None


def test_the_verbs_take_a_model_of_plain_words_and_connect_to_nobody(folder: Path, connections: list[str]) -> None:
    for place, put in PLACES.items():
        model = seeds.plain_model()
        put(model, "plain")
        Path("x.onnx").write_bytes(model.SerializeToString())
        assert "model      x.onnx" in printed("inspect", "x.onnx"), place
    Path("x.onnx").write_bytes(seeds.plain_model().SerializeToString())
    for verb in VERBS:
        command().main(verb.split(), "edgert", standalone_mode=False)
    assert connections == []


def test_onnx_runtime_collects_no_telemetry(tmp_path: Path) -> None:
    """Since 1.29 it writes a database of events into the user's cache, and sends them from native code."""
    known = {name: environment()[name] for name in ("PATH", "PYTHONPATH")}  # it is silent in CI by itself
    command = [sys.executable, "-c", "import edgert, onnxruntime"]
    subprocess.run(command, env={**known, "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}, check=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", PLACES)
def test_no_verb_prints_what_a_model_says_to_the_terminal(place: str, folder: Path) -> None:
    verbs = {verb.split()[0] for verb in VERBS}
    asked = {info.callback.__name__ for info in app.registered_commands if info.callback} - {"job", "schema"}
    # these print no names of it
    others = {"doctor", "boards", "ctl", "top", "bench", "evaluate", "explain", "import_model", "models", "gallery"}
    assert verbs | others | {"replay"} == asked
    for number, text in enumerate(HOSTILE.values()):
        model = seeds.plain_model()
        PLACES[place](model, text)
        Path("x.onnx").write_bytes(model.SerializeToString())
        for verb in VERBS if number == 0 else VERBS[:1]:
            assert not steers(printed(*verb.split())), verb


@pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))
def test_labels_that_steer_a_terminal_are_refused(text: str, folder: Path) -> None:
    Path("hostile.txt").write_text(f"a\n{text}\nc\nd\n", newline="")
    Path("l.yaml").write_text(seeds.PIPELINES[1].replace("labels.txt", "hostile.txt"))
    for verb in ("validate l.yaml", "run l.yaml --plain", "check l.yaml --images photos/0.png"):
        shown = printed(*verb.split())
        assert not steers(shown), verb
        if "\r" not in text:  # that ends a line of the list
            assert "hostile.txt is not a list of labels" in shown, verb


@pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))
@pytest.mark.parametrize("key", ["name: two", "look:", "path: out/events.jsonl", "limit: 3", "classify: softmax"])
def test_a_pipeline_file_that_steers_a_terminal(key: str, text: str, folder: Path) -> None:
    quoted = '"' + "".join(f"\\u{ord(letter):04x}" for letter in text) + '"'
    name, _, value = key.partition(":")
    written = f"{name}:{value and ' '}{quoted}" if value else f"{quoted}:"
    Path("s.yaml").write_text(seeds.PIPELINES[1].replace(key, written))
    for verb in ("validate s.yaml", "plan s.yaml --board orin-nx-16gb --mode 15W", "run s.yaml --dry-run"):
        assert not steers(printed(*verb.split())), verb
