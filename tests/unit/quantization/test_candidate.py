"""Versions of a model made to be evaluated beside it."""

import threading
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edgert.backend.ort import Function
from edgert.config import ModelConfig
from edgert.dataset import LabeledDataset
from edgert.errors import CalibrationError
from edgert.evaluation import evaluate_versions, open_evaluation
from edgert.graph import Graph, Model, load
from edgert.quantization import quantizer as recipe
from edgert.quantization.calibrated import calibrate_section
from edgert.quantization.calibration.ranges import save_table
from edgert.quantization.evaluate import Evaluation
from edgert.quantization.quantization_error import shift_biases
from edgert.quantization.run import Run
from edgert.quantization.section import ModelSection
from edgert.quantization.variants import make_versions
from tests.unit.quantization.network import IMAGES, SIZE, random_images


@pytest.fixture
def ranges(config: ModelConfig, tmp_path: Path) -> Path:
    path = tmp_path / "ranges.json"
    save_table(calibrate_section(config, images=random_images(IMAGES, 5)).table, path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """The images that ranges were measured on, as files."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(IMAGES):
        cv2.imwrite(str(folder / f"{number}.png"), random_images(IMAGES, 5).frame(number).planes[0])
    return folder


def test_a_range_file_is_enough(config: ModelConfig, ranges: Path) -> None:
    exam_images = random_images(6, 9)
    made = make_versions(config, exam_images, precisions=["int8", "fp16"], emulated=["dla", "gpu"], ranges=ranges)
    assert list(made) == ["int8", "int8 dla (emulated)", "int8 gpu (emulated)", "fp16"]
    assert [one.emulated for one in made.values()] == [False, True, True, False]
    assert isinstance(made["int8"].run, Model) and isinstance(made["fp16"].run, Model)
    int8 = made["int8"].quantized
    assert int8 is not None and not int8.made.quantizer.recipe.correct_bias and int8.source == str(ranges)
    feeds = {"x": np.random.default_rng(0).normal(0, 1, (1, 3, SIZE, SIZE)).astype(np.float32)}
    exact = Function(load(config.onnx))(feeds)["y"]
    for one in made.values():
        run = Function(one.run) if isinstance(one.run, Model) else one.run
        assert callable(run)
        np.testing.assert_allclose(run(feeds)["y"], exact, atol=0.1)


def test_ranges_of_another_model_are_refused(config: ModelConfig, ranges: Path) -> None:
    equalized = config.model_copy(update={"quantize": config.quantize.model_copy(update={"equalize": True})})
    with pytest.raises(CalibrationError, match="another model") as caught:
        make_versions(equalized, random_images(4, 1), Run("p.yaml:2"), precisions=["int8"], ranges=ranges)
    assert caught.value.where


def test_images_of_the_evaluation_are_not_learnt_from(config: ModelConfig) -> None:
    with pytest.raises(CalibrationError, match="needs images"):
        make_versions(config, random_images(IMAGES, 1), precisions=["int8"])


@pytest.mark.parametrize("named", [True, False])
def test_a_bias_correction_that_does_harm_is_seen_on_the_models_own_images(
    config: ModelConfig, ranges: Path, named: bool, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ruin(graph: Graph, *rest: Any, **options: Any) -> Graph:
        (node,) = graph.consumers["w4"]
        return shift_biases(graph, {node.outputs[0]: np.linspace(100.0, 0.0, graph.constants["b4"].size)})

    monkeypatch.setattr(recipe, "correct_biases", ruin)
    calibrate = str(photos) if named else ""
    versions = make_versions(config, random_images(6, 9), precisions=["int8"], calibrate=calibrate, ranges=ranges)
    made = versions["int8"].quantized
    assert made is not None and made.made.quantized.notes == ()


@pytest.mark.parametrize("emulated", ["dla", "gpu"])
@pytest.mark.parametrize("at", ["correcting biases", "fp32", "int8"])
def test_what_is_made_can_be_stopped(config: ModelConfig, ranges: Path, emulated: str, at: str, photos: Path) -> None:
    stop, heard_lines = threading.Event(), list[str]()

    def heard(text: str, *rest: object) -> None:
        heard_lines.append(text)
        if text.endswith(at):
            stop.set()

    run = Run(log=heard, bar=heard, stop=stop)
    with pytest.raises(CalibrationError, match="stopped while"):
        make_versions(config, random_images(6, 9), run, emulated=[emulated], calibrate=str(photos), ranges=ranges)
    assert heard_lines[-1].endswith(at)


def test_only_what_is_asked_for_is_made(config: ModelConfig) -> None:
    assert make_versions(config, random_images(1, 1)) == {}
    assert list(make_versions(config, random_images(1, 1), precisions=["fp16"])) == ["fp16"]


def test_the_report_of_an_evaluation(config: ModelConfig, ranges: Path, tmp_path: Path) -> None:
    made = make_versions(config, random_images(6, 9), precisions=["int8"], emulated=["dla"], ranges=ranges)
    model, others = load(config.onnx), {"other.onnx": load(config.onnx)}
    dataset, section = LabeledDataset(tmp_path, random_images(6, 9)), ModelSection("net", config, "", tmp_path)
    setup = open_evaluation(model, config, dataset)
    runs = {name: one.run for name, one in made.items()}
    evaluation = evaluate_versions({"net": model, **others, **runs}, setup)
    assert evaluation is not None
    report = Evaluation(section, evaluation, dataset, made, others).report("edgert eval")
    assert [row.precision for row in report.accuracy] == ["other.onnx", "INT8", "INT8, DLA emulated"]
    assert [row.precision for row in report.speed] == ["FP32", "other.onnx", "INT8"]
    assert list(report.sizes_bytes) == ["FP32", "INT8", "other.onnx"]
    assert report.target == "ONNX Runtime" and len(report.layers) == 4 and report.tensors
    alone = {"int8 dla (emulated)": made["int8 dla (emulated)"]}
    evaluation = evaluate_versions({"net": model, **{name: one.run for name, one in alone.items()}}, setup)
    assert evaluation is not None
    report = Evaluation(section, evaluation, dataset, alone, {}).report()
    assert report.target == "TensorRT on a DLA, emulated" and report.notes[0].level == "warning"
    assert report.speed == () and not report.sizes_bytes and [row.precision for row in report.accuracy] == ["INT8"]
    assert all(row.sqnr_db is not None and row.sqnr_db > 5 for row in report.layers)
    evaluation = evaluate_versions({"net": model, **others}, setup)
    assert evaluation is not None
    report = Evaluation(section, evaluation, dataset, {}, others).report()
    assert report.precision == "other.onnx" and report.layers == () and "edgert" in report.absent["layers"]


@pytest.mark.parametrize(
    ("task", "metric"),
    [
        ({"classify": "auto"}, "top1"),
        ({"classify": "multilabel"}, "map"),
        ({"detect": "yolox"}, "map"),
        ({"segment": "argmax"}, "miou"),
        ({"depth": "inverse"}, "abs_rel"),
    ],
)
def test_labels_without_a_metric_are_judged_by_the_usual_one_of_the_task(
    task: dict[str, str], metric: str, tmp_path: Path
) -> None:
    (tmp_path / "labels.csv").write_text("a.png,0\n")
    section = ModelSection("net", ModelConfig(onnx="m.onnx", task=task), "", tmp_path)
    accuracy = section.with_budget(str(tmp_path / "labels.csv"), None, None).config.accuracy
    assert accuracy is not None and accuracy.metric == metric
