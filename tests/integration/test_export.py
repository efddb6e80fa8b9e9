"""Models that leave edgert: what is written runs, and says of itself what is true."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from edgert.board.host import saturates_bytes
from edgert.bundle.bundle import open_bundle
from edgert.errors import ArtifactError, BuildError, ConfigError, EdgertError
from edgert.exporter.export import check_written, export, open_source
from edgert.graph import load, to_bytes
from tests.helpers import models
from tests.helpers.command import edgert, in_process
from tests.helpers.small_pipeline import TEXT, Build, network, small_pipeline

JETSON = "orin-nx-16gb"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline and its bundles: for a board with each dialect, and for any machine."""
    folder = tmp_path_factory.mktemp("export")
    file = small_pipeline(folder / "small", TEXT.replace("api}", "api}\n  mark: {draw: boxes, from: find}"))
    for name, board, tensorrt in (
        ("weak", JETSON, "10.3"),
        ("strong", "agx-orin-64gb", "11.4.1"),
        ("host", "host", None),
    ):
        overrides = (
            ["models.parts.placement=dla0", "models.parts.tensorrt.workspace=64MiB"]
            if tensorrt
            else ["models.parts.threads=2", "models.parts.tuning.arena=false"]
        )
        Build(file, folder / f"{name}.edgert", folder / "cache", overrides, board=board, tensorrt=tensorrt)
    return folder


@pytest.fixture(autouse=True)
def own_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGERT_CACHE", str(home / "own"))


@pytest.fixture
def opened(home: Path) -> Iterator[Any]:
    """Opens a source for the length of a test."""
    with ExitStack() as stack:
        yield lambda name, **options: stack.enter_context(open_source(home / name, **options))


def run(path: Path, feed: Any) -> Any:
    options = onnxruntime.SessionOptions()
    if saturates_bytes():
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: feed})[0]


FEED = np.random.default_rng(1).random((1, 3, 16, 16), "f4")


@pytest.mark.parametrize(
    ("form", "target", "apart"),
    [
        ("float", None, 1e-6),
        ("fp16", None, 1e-2),
        ("fit", None, 1e-3),
        *(("int8-qdq", one, 0.1) for one in ("ort", "dla")),
    ],
)
def test_plain_onnx_computes_what_the_model_does(
    home: Path, tmp_path: Path, form: Any, target: Any, apart: float
) -> None:
    left = export(home / "weak.edgert", tmp_path / "out.onnx", form=form, target=target)
    assert left.files == (tmp_path / "out.onnx",)
    wanted = run(home / "small" / "parts.onnx", FEED)
    made = run(left.files[0], FEED)
    assert float(np.abs(made - wanted).max()) <= apart * float(np.abs(wanted).max())
    kinds = {node.op_type for node in onnx.load(left.files[0]).graph.node}
    assert ("QuantizeLinear" in kinds or "DequantizeLinear" in kinds) == (
        target == "dla"
    )  # for ONNX Runtime nothing of it is worth it
    told = "\n".join(left.limitations)
    assert "before it: stretch" in told and "mark (draw)" in told


def test_without_a_form_it_is_the_one_that_was_built(home: Path, tmp_path: Path) -> None:
    left = export(home / "host.edgert", tmp_path)
    assert left.files == (tmp_path / "parts.onnx",)
    with open_bundle(home / "host.edgert") as bundle:
        built = bundle.read(bundle.manifest.models["parts"].forms["ort"])
    assert run(left.files[0], FEED).tobytes() == onnxruntime.InferenceSession(built).run(None, {"x": FEED})[0].tobytes()


def test_a_pipeline_is_built_on_the_way(home: Path, tmp_path: Path) -> None:
    events: list[Any] = []
    file = home / "small" / "small.yaml"
    left = export(file, tmp_path, overrides=("models.parts.precision=fp16",), on_progress=events.append)
    assert {event.step for event in events} >= {"load", "quantize", "bundle"}
    types = {item.data_type for item in onnx.load(left.files[0]).graph.initializer}
    assert onnx.TensorProto.FLOAT16 in types


def test_an_onnx_file_leaves_whole_though_its_weights_stand_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "my model (1).onnx"
    onnx.save(network((1, 3, 16, 16)).proto, path, save_as_external_data=True, size_threshold=0, location="weights.bin")
    left = export(path, tmp_path / "out")
    assert [file.name for file in left.files] == ["my-model--1-.onnx"]
    (tmp_path / "weights.bin").unlink()
    assert run(left.files[0], FEED).shape == (1, 4, 1, 1) and left.limitations == ()


def test_files_that_stand_there_are_replaced_and_others_stay(home: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "parts.onnx").write_text("old")
    export(home / "host.edgert", tmp_path)
    assert (tmp_path / "other").is_dir() and onnx.load(tmp_path / "parts.onnx").graph.node


@pytest.mark.parametrize(
    ("options", "what", "fix"),
    [
        ({"form": "fp61"}, "no 'fp61'; did you mean 'fp16'", "one of float, fp16, int8-qdq, fit"),
        ({"form": "int8-qdq", "target": "dla"}, "no INT8 form of model 'parts' for dla", "--target ort"),
    ],
)
def test_options_that_cannot_be(home: Path, tmp_path: Path, options: Any, what: str, fix: str) -> None:
    with pytest.raises(EdgertError, match=what) as caught:
        export(home / "host.edgert", tmp_path, **options)
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("name", "options", "what"),
    [
        ("weak.edgert", {"board": JETSON}, "--board is not for a bundle"),
        ("small/parts.onnx", {"overrides": ("board=host",)}, "--set is not for an ONNX file"),
        ("small/parts.onnx", {"board": JETSON}, "--board is not for an ONNX file"),
    ],
)
def test_sources_that_cannot_be(home: Path, name: str, options: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught, open_source(home / name, **options):
        pass
    assert caught.value.fix


def test_a_float_file_has_no_int8_form(home: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no INT8 form of model 'parts'") as caught:
        export(home / "small" / "parts.onnx", tmp_path, form="int8-qdq")
    assert "edgert quantize parts.onnx" in caught.value.fix


def test_no_model_of_that_name(home: Path) -> None:
    wanted = pytest.raises(ConfigError, match="no model 'part'; did you mean 'parts'")
    with wanted, open_source(home / "small" / "parts.onnx", model="part"):
        pass


def test_several_models_do_not_fit_into_one_file(home: Path, tmp_path: Path) -> None:
    text = TEXT.replace("stages:", "  other: {onnx: parts.onnx, task: {embed: none}}\nstages:")
    file = small_pipeline(tmp_path / "two", text.replace("precision: int8", "precision: fp32"))
    with pytest.raises(ConfigError, match="cannot write 2 models to one file") as caught:
        export(file, tmp_path / "one.onnx")
    assert caught.value.why == "parts, other"
    left = export(file, tmp_path / "one.onnx", model="other")
    assert left.files == (tmp_path / "one.onnx",)


@pytest.mark.parametrize(
    ("options", "what", "fix"),
    [
        (("--format", "onnx", "--target", "gpus"), "no 'gpus'; did you mean 'gpu'?", "one of ort, gpu, dla"),
        (("--format", "onnx", "--model", "part"), "no model 'part'; did you mean 'parts'?", "models: parts"),
    ],
)
def test_what_cannot_leave_is_told_before_the_build(
    home: Path, tmp_path: Path, options: tuple[str, ...], what: str, fix: str
) -> None:
    cache = tmp_path / "cache"
    file = str(home / "small" / "small.yaml")
    done = edgert("export", file, *options, "-o", "out", cwd=tmp_path, env={"EDGERT_CACHE": str(cache)})
    assert done.returncode == 1 and what in done.stderr and fix in done.stderr
    assert not cache.exists() and not (tmp_path / "out").exists()


def test_what_was_written_wrong_is_found(opened: Any, home: Path, tmp_path: Path) -> None:
    item = opened("host.edgert").items[0]
    (tmp_path / "conv.onnx").write_bytes(to_bytes(models.conv((1, 3, 16, 16))))
    shutil.copy(home / "small" / "parts.onnx", tmp_path / "same.onnx")
    model = load(home / "small" / "parts.onnx")
    check_written(tmp_path / "same.onnx", item, model)
    changed = onnx.load(tmp_path / "same.onnx")
    changed.graph.initializer[0].raw_data = bytes(len(changed.graph.initializer[0].raw_data))
    onnx.save(changed, tmp_path / "same.onnx")
    with pytest.raises(ArtifactError, match="does not compute what was written"):
        check_written(tmp_path / "same.onnx", item, model)


def test_typed_at_a_prompt(home: Path, tmp_path: Path) -> None:
    bundle = str(home / "weak.edgert")
    done = edgert("export", bundle, "--format", "onnx", "-o", "out", "--json", "out.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["files"] == ["out/parts.onnx"] and "What onnx cannot express:" in done.stdout
    assert all(line in done.stdout for line in told["limitations"])
    wrong = in_process("export", bundle, "--format", "onxn", "-o", "out", cwd=tmp_path)
    assert wrong.returncode == 1 and "no 'onxn'; did you mean 'onnx'?" in wrong.stderr
    assert "one of onnx, ansible, compose, systemd, kubernetes" in wrong.stderr
