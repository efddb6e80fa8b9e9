"""``engines:`` of a plain pipeline file: who runs each model, in which form, and what is said."""

import logging
from pathlib import Path
from typing import Any

import pytest

from edgert.assemble import assemble
from edgert.assemble.engines import ChainEngines, Form
from edgert.backend.tensorrt.trt_backend import TrtBackend
from edgert.config import ModelConfig, PipelineFile, load_pipeline
from edgert.errors import BuildError
from edgert.graph import Model, to_bytes
from edgert.pipeline import Pipeline
from edgert.validation import validate
from tests.helpers.trt_bench import ORIN, Bench
from tests.helpers.trt_bundle import PIPELINE, bench, model

ALL = "[tensorrt-dla, tensorrt, onnxruntime]"


pytestmark = pytest.mark.usefixtures("own_cache")


def written(folder: Path, engines: str = ALL, **section: str) -> PipelineFile:
    (folder / "models/parts").mkdir(parents=True)
    (folder / "models/parts/model.onnx").write_bytes(to_bytes(model()))
    further = "".join(f"    {key}: {value}\n" for key, value in section.items())
    text = PIPELINE.replace("    input:", f"{further}    input:")
    (folder / "p.yaml").write_text(f"engines: {engines}\n{text}", encoding="utf-8")
    return load_pipeline(folder / "p.yaml")


class Chained:
    """The chain of a file on a Jetson that is stood in for."""

    def __init__(self, file: PipelineFile, on: Bench, monkeypatch: pytest.MonkeyPatch, strict: bool = False) -> None:
        monkeypatch.setattr("edgert.assemble.engines.detect", lambda: ORIN)
        self.file, self.forms = file, list[Form]()
        self.engines = ChainEngines(file, self.model, strict, None, on.backend)

    def model(self, name: str, config: ModelConfig, form: Form) -> Model:
        self.forms.append(form)
        return model()

    def compile(self) -> dict[str, Any]:
        engine = self.engines.compile("parts", self.file.config.models["parts"], 1, 1)
        engine.close()
        return dict(engine.info)


def test_tensorrt_gets_the_form_for_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chained = Chained(written(tmp_path, "[tensorrt, onnxruntime]"), bench(), monkeypatch)
    info = chained.compile()
    assert (info["engine"], info["backend"], info["skipped"]) == ("tensorrt", "tensorrt", [])
    assert chained.forms == ["gpu"]


def test_a_dla_wants_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "edgert.backend"):
        info = Chained(written(tmp_path), bench(), monkeypatch).compile()
    assert info["engine"] == "tensorrt" and "edgert build p.yaml --board orin-nx-16gb" in info["skipped"][0]["why"]
    assert caplog.messages[0].startswith("tensorrt-dla skipped: models for a DLA are built first")


def test_a_refused_model_goes_to_onnx_runtime_in_its_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = bench(errors=[(0, "conv", "Conv", "Plugin not found")])
    chained = Chained(written(tmp_path, "[tensorrt, onnxruntime]"), refusing, monkeypatch)
    info = chained.compile()
    assert (info["engine"], info["backend"], chained.forms) == ("onnxruntime", "ort", ["gpu", "ort"])
    assert info["skipped"][0]["model"] == "parts" and "'conv' (Conv, opset" in info["skipped"][0]["why"]


def test_strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = bench(errors=[(0, "conv", "Conv", "Plugin not found")])
    chained = Chained(written(tmp_path, "[tensorrt, onnxruntime]"), refusing, monkeypatch, strict=True)
    with pytest.raises(BuildError, match="cannot parse node 'conv'") as caught:
        chained.compile()
    assert caught.value.fix.endswith("the next possible engine is used: onnxruntime")


def test_a_sections_own_backend_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = bench()
    info = Chained(written(tmp_path, "tensorrt", backend="ort"), on, monkeypatch).compile()
    assert info["backend"] == "ort" and on.requests == []


def test_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path)
    monkeypatch.setattr(TrtBackend, "why_not", lambda self: "TensorRT is not installed (sudo apt install …)")
    with Pipeline(file) as pipeline:
        summary = pipeline.run().to_json()
    assert summary["engine"]["parts"]["engine"] == "onnxruntime"
    assert [one["engine"] for one in summary["engine"]["parts"]["skipped"]] == ["tensorrt-dla", "tensorrt"]
    with pytest.raises(BuildError, match="tensorrt-dla cannot run this here") as caught:
        Pipeline(file, strict=True)
    assert caught.value.where.endswith("p.yaml:1 engines")


def test_placement_gpu_is_the_chains_to_keep(tmp_path: Path) -> None:
    file = written(tmp_path, "[onnxruntime]", placement="gpu")
    assembly = assemble(file)
    assert assembly.engines["parts"].info["engine"] == "onnxruntime"
    assembly.close()


def test_validate_compiles_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgert.assemble.engines.ChainEngines.compile", pytest.fail)
    assert "1 model" in str(validate(written(tmp_path, "tensorrt").document.path))


def test_without_the_key_nothing_changes(tmp_path: Path) -> None:
    path = written(tmp_path).document.path
    path.write_text(path.read_text().replace(f"engines: {ALL}\n", ""))
    assembly = assemble(load_pipeline(path))
    assert "engine" not in assembly.engines["parts"].info
    assembly.close()
