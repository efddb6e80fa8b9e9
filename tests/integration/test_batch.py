"""``batch:`` in a pipeline file: frames of several streams in one run, on the CPU."""

from contextlib import closing
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from onnx import numpy_helper

from edgert.assemble import Environment, assemble
from edgert.backend import Engine
from edgert.compiler.build_pipeline import build
from edgert.compiler.unpack import unpacked
from edgert.config import ModelConfig, load_pipeline
from edgert.engine import build_engine
from edgert.errors import ConfigError, ModelError
from edgert.graph import Model, to_bytes
from edgert.installation import demo_images
from edgert.pipeline import Pipeline
from edgert.quantization import batched, int8_model, throughput
from edgert.quantization.calibrated import calibrate_section
from edgert.reporter import Progress
from tests.helpers import models
from tests.helpers.errors import Exactly, raises
from tests.helpers.evaluation_data import data
from tests.helpers.models import node

ASSETS = Path(__file__).parents[2] / "pipelines" / "assets"

FILE = """
schema: 1
name: batch
models:
  net: {{onnx: net.onnx, task: {{classify: logits, top: 4}}, input: {{resize: stretch}}, {model}}}
stages:
  one: {{source: "{belt}", size: 96x64, limit: 12, realtime: false, seed: 1}}
  two: {{source: "{belt}", size: 128x96, limit: 9, realtime: false, seed: 2}}
  kind: {{infer: net, from: [one, two], {stage}}}
"""


def written(folder: Path, stage: str = "", model: str = "", batch: Any = "n") -> Path:
    (folder / "net.onnx").write_bytes(to_bytes(models.means((batch, 3, 8, 8))))
    file = folder / "batch.yaml"
    file.write_text(FILE.format(belt=demo_images(), stage=stage, model=model))
    return file


def results(file: Path) -> dict[tuple[str, int], Any]:
    with Pipeline(file) as pipeline:
        return {(r.frame.stream, r.frame.index): r.outputs["kind"] for r in pipeline.results("kind", timeout=20)}


def test_every_frame_gets_the_record_it_gets_alone(tmp_path: Path) -> None:
    alone = results(written(tmp_path))
    together = results(written(tmp_path, "batch: {max: 4, wait: 5ms}"))
    assert together.keys() == alone.keys() and len(alone) == 21
    for key, record in together.items():
        assert np.array_equal(record.classes, alone[key].classes)
        assert np.allclose(record.scores, alone[key].scores, atol=1e-5)


def test_a_model_of_fixed_batch_is_refused(tmp_path: Path) -> None:
    file = load_pipeline(written(tmp_path, "batch: {max: 4}", batch=1))
    with raises(ConfigError, "batches of 4 for a model that takes 1 at a time", where="batch.yaml:9", fix="left open"):
        assemble(file)


def test_float16_is_batched_too(tmp_path: Path) -> None:
    alone = results(written(tmp_path, model="precision: fp16"))
    together = results(written(tmp_path, "batch: {max: 4, wait: 5ms}", "precision: fp16"))
    assert together.keys() == alone.keys() and len(alone) == 21
    for key, record in together.items():
        assert np.allclose(np.sort(record.scores), np.sort(alone[key].scores), atol=2e-3)
    made = assemble(load_pipeline(written(tmp_path, "batch: {max: 4}", "precision: fp16")))
    assert [spec.shape for spec in made.engines["net"].inputs] == [(4, 3, 8, 8)]
    made.close()


INT8 = "precision: {}, calibrate: {{images: photos, early_stop: false}}"


def for_int8(folder: Path, stage: str = "", precision: str = "int8", batch: Any = "n", tail: str = "mean") -> Path:
    path = written(folder, stage, INT8.format(precision))
    (folder / "net.onnx").write_bytes(to_bytes(convolution(batch, tail)))
    (folder / "photos").mkdir(exist_ok=True)
    for index in range(8):
        image = np.random.default_rng(index).integers(0, 256, (8, 8, 3), np.uint8)
        cv2.imwrite(str(folder / "photos" / f"{index}.png"), image)
    return path


def convolution(batch: Any, tail: str) -> Model:
    """The average of each channel behind a convolution; ``tail`` decides which sizes hold it to one image."""
    model = models.conv((batch, 3, 8, 8))
    del model.proto.graph.output[0]
    if tail == "first":
        proto = model.proto.graph
        proto.node[2].output[0] = "all"
        proto.initializer.append(numpy_helper.from_array(np.array([0]), "zero"))
        if batch == 1:
            proto.initializer.append(numpy_helper.from_array(np.array([1]), "rows"))
        else:  # all of them, but the first only once this is folded
            proto.node.append(node("Shape", ["x"], ["rows"], end=1))
        proto.node.append(node("Slice", ["all", "zero", "rows", "zero"], ["mean"], name="taken"))
    return model


@pytest.mark.parametrize("batch", ["n", 1])
@pytest.mark.parametrize("precision", ["int8", "auto"])
def test_int8_is_batched_and_its_batch_is_opened_where_the_file_fixes_it(
    tmp_path: Path, precision: str, batch: Any
) -> None:
    alone = results(for_int8(tmp_path, precision="int8", batch=batch))
    together = results(for_int8(tmp_path, "batch: {max: 4, wait: 5ms}", precision, batch))
    assert together.keys() == alone.keys() and len(alone) == 21
    for key, record in together.items():
        same = precision == "int8"  # auto may take fp32
        assert np.allclose(np.sort(record.scores), np.sort(alone[key].scores), atol=0 if same else 0.1)
    made = assemble(load_pipeline(tmp_path / "batch.yaml"))
    assert [spec.shape for spec in made.engines["net"].inputs] == [(4, 3, 8, 8)]
    made.close()


@pytest.mark.parametrize("batch", ["n", 1])
def test_int8_that_cannot_be_batched_is_refused_by_the_node(tmp_path: Path, batch: Any) -> None:
    file = load_pipeline(for_int8(tmp_path, "batch: {max: 4}", batch=batch, tail="first"))
    with pytest.raises(ModelError, match="takes one image at a time") as caught:
        assemble(file)
    assert "node 'taken' (Slice)" in caught.value.why
    assert ("the file has an open batch" in caught.value.why) == (batch == "n")
    assert "leave batch out" in caught.value.fix and "net.onnx" in str(caught.value)


def test_auto_takes_the_float_model_whose_batch_int8_cannot_keep(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "edgert.quantization")
    made = assemble(load_pipeline(for_int8(tmp_path, "batch: {max: 4}", "auto", tail="first")))
    assert [spec.shape for spec in made.engines["net"].inputs] == [(4, 3, 8, 8)]
    assert "auto takes fp32: INT8 would take one image at a time: output 'mean' of node 'taken'" in caplog.text
    made.close()


def test_auto_is_timed_at_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fastest(versions: Any, config: Any, threads: int | None = None, batch: int = 1) -> throughput.Choice:
        asked.append((list(versions), batch))
        return throughput.Choice("int8", versions["int8"], {})

    monkeypatch.setattr("edgert.quantization.throughput.fastest", fastest)
    assemble(load_pipeline(for_int8(tmp_path, "batch: {max: 4}", "auto", 1))).close()
    assert asked == [(["fp32", "int8"], 4)] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "images", "seen"),
    [
        ("demo", demo_images(), {"resize": "letterbox", "std": 255}),
        ("squeezenet_fp32", "coco_calib", {"resize": "stretch", "color": "bgr", "mean": [104, 117, 123]}),
        ("fastestdet", "coco_calib", {"resize": "stretch", "std": 255}),
    ],
)
def test_real_networks_give_the_same_bits_in_a_batch(model: str, images: str, seen: dict[str, Any]) -> None:
    is_demo = model == "demo"
    config = ModelConfig.model_validate(
        {
            "onnx": ASSETS / "parts.onnx" if is_demo else data("models", f"{model}.onnx"),
            "task": {"embed": "none"},
            "input": seen,
            "precision": "int8",
            "calibrate": {"images": images if is_demo else data("images", images), "limit": 8, "early_stop": False},
        }
    )
    calibrated = calibrate_section(config, target="ort")
    fixed = int8_model.round_only_model(config, calibrated)
    with (
        closing(build_engine(batched.open_batch(fixed, calibrated.feeds(2)), config, 1, 4)) as engine,
        closing(build_engine(fixed, config, 1)) as single,
    ):
        batch, one = engine.session(), single.session()
        (name,) = batch.inputs
        feeds = [feed[name] for feed in calibrated.feeds(4)]
        batch.inputs[name][:] = np.concatenate(feeds)
        together = [array.copy() for array in batch.run()]
        for row, feed in enumerate(feeds):
            one.inputs[name][:] = feed
            for array, alone in zip(together, one.run(), strict=True):
                assert np.array_equal(array[row : row + 1], alone)


@pytest.mark.parametrize(
    ("stage", "model", "message"),
    [
        ("batch: {max: 4}, crop: {}", "", "batch cannot go with crop"),
        ("batch: {max: 1}", "", "expected 2 or more"),
        ("batch: {max: 4, wait: 5}", "", "5"),
        ("batch: {max: 4, wait: 5ms, size: 3}", "", "unknown key 'size'"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, stage: str, model: str, message: str) -> None:
    with raises(ConfigError, where="batch.yaml:9", says=message):
        load_pipeline(written(tmp_path, stage, model))


def test_placed_models_are_not_batched(tmp_path: Path) -> None:
    file = load_pipeline(written(tmp_path, "batch: {max: 4}", "placement: cpu0"))
    with raises(ConfigError, "batch cannot go with placement", fix=Exactly("placement: auto")):
        assemble(file)


class _Bundled:
    """A bundle's engines, as a board has them: of one size."""

    in_bundle = True

    def compile(self, name: str, config: ModelConfig, threads: int, batch: int) -> Engine:
        return build_engine(models.means((1, 3, 8, 8)), config, threads, batch)


def test_the_export_is_not_blamed_for_what_a_bundle_fixed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batches of 4 for a model that takes 1 at a time") as caught:
        assemble(load_pipeline(written(tmp_path, "batch: {max: 4}")), environment=Environment(engines=_Bundled()))
    assert caught.value.why.endswith("in the bundle") and "run the pipeline file itself" in caught.value.fix


def test_int8_is_batched_where_nothing_is_computed(tmp_path: Path) -> None:
    made = assemble(load_pipeline(for_int8(tmp_path, "batch: {max: 4}", batch=1), ['models.net.backend="null"']))
    assert [spec.shape for spec in made.engines["net"].inputs] == [(4, 3, 8, 8)]
    made.close()


def bundled(path: Path, board: str) -> list[str]:
    events: list[Progress] = []
    build(
        load_pipeline(path),
        path.parent / "net.edgert",
        board=board,
        cache=path.parent / "cache",
        on_progress=events.append,
    )
    return [event.detail for event in events]


@pytest.mark.parametrize(("precision", "batch"), [("int8", 1), ("int8", "n"), ("fp16", "n")])
def test_a_bundle_for_this_machine_keeps_the_batch_open(tmp_path: Path, precision: str, batch: Any) -> None:
    bundled(for_int8(tmp_path, "batch: {max: 4, wait: 5ms}", precision, batch), "host")
    with unpacked(tmp_path / "net.edgert") as found, Pipeline(found.file) as pipeline:
        assert len(list(pipeline.results("kind", timeout=20))) == 21


def test_building_for_a_board_reports_that_it_takes_one_size(tmp_path: Path) -> None:
    logged = bundled(for_int8(tmp_path, "batch: {max: 4}"), "orin-nx-16gb")
    assert any("models in a bundle for a board have one size" in text for text in logged)
