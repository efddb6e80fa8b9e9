"""The error of one setting ends that setting, and a slow model ends the search in time."""

from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest

from edgert.config import DetectTask, InputConfig, ModelConfig
from edgert.config.model_section import value_of
from edgert.wiring import search as search_module
from edgert.wiring.check import check
from edgert.wiring.inferred import infer
from edgert.wiring.search import Search, load_subject
from edgert.wiring.settings import Setting
from tests.helpers.models import constant

NAMES = [f"class {number}" for number in range(80)]
PIPELINE = """
models: {net: {onnx: net.onnx, task: {detect: yolov10, labels: names.txt}, input: {resize: letterbox, std: 255}}}
stages: {cam: {source: 'usb:0'}, see: {infer: net, from: cam}}
"""


@pytest.fixture
def end_to_end(tmp_path: Path) -> Path:
    """A detector with final boxes [300, 6] and 80 class names, as Ultralytics exports YOLO26 end to end."""
    rows = np.zeros((1, 300, 6), np.float32)
    rows[0, :3] = [(100, 120, 300, 420, 0.9, 17), (320, 40, 602, 200, 0.8, 2), (10, 500, 90, 630, 0.7, 79)]
    proto = constant({"output0": rows}, (1, 3, 640, 640)).proto
    about = {"task": "detect", "end2end": "True", "names": str(dict(enumerate(NAMES))), "author": "Ultralytics"}
    for key, text in {**about, "description": "Ultralytics YOLO26n model", "imgsz": "[640, 640]"}.items():
        proto.metadata_props.add(key=key, value=text)
    onnx.save(proto, tmp_path / "net.onnx")
    (tmp_path / "names.txt").write_text("\n".join(NAMES), encoding="utf-8")
    image = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    for number in range(2):
        cv2.imwrite(str(tmp_path / f"photo{number}.png"), image[number * 8 :])
    return tmp_path


def photos(folder: Path) -> list[Path]:
    return sorted(folder.glob("photo*.png"))


def test_new_reads_a_detector_with_final_boxes_and_class_names_on_photos(end_to_end: Path) -> None:
    found = infer(end_to_end / "net.onnx", photos(end_to_end)[:1])
    assert value_of(found.setting.task) == "yolov10"
    assert found.report


def test_check_reports_on_a_detector_with_final_boxes_and_class_names(end_to_end: Path) -> None:
    (end_to_end / "p.yaml").write_text(PIPELINE, encoding="utf-8")
    report = check(end_to_end / "p.yaml", photos(end_to_end)[:1])
    assert report.rows


def searched(folder: Path, cpu_seconds: float) -> Search:
    config = {"onnx": folder / "net.onnx", "task": {"detect": "yolov10"}, "input": {"size": "640x640"}}
    found = load_subject(ModelConfig.model_validate(config), (), "net")
    image = np.zeros((64, 64, 3), np.uint8)
    search = Search(found, [(Path("a"), image), (Path("b"), image)], "detect", cpu_seconds=cpu_seconds)
    base = Setting(InputConfig(), DetectTask(detect="yolov10"))
    search.explore(base, [base.task])
    return search


def test_a_search_without_time_tries_the_expected_setting_on_one_photo(end_to_end: Path) -> None:
    search = searched(end_to_end, 0.0)
    (only,) = search.ranking.tallies
    assert list(only.evidence) == [0]
    assert search.is_cut_short


def test_a_search_with_time_tries_every_setting_on_every_photo(end_to_end: Path) -> None:
    search = searched(end_to_end, 600.0)
    assert len(search.ranking.tallies) > 5
    assert not search.is_cut_short


def test_new_says_when_one_photo_takes_longer_than_the_search_may(
    end_to_end: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module.Search, "photo_cpu_s", 240.0)
    found = infer(end_to_end / "net.onnx", photos(end_to_end))
    assert not found.report
    assert any("no photo was tried: one setting on one photo takes 240 s" in note for note in found.input_notes)


@pytest.mark.parametrize("about", [{"description": "Ultralytics rtdetr-l model"}, {}])
def test_new_reads_an_rt_detr_as_relative_centers_and_sizes(tmp_path: Path, about: dict[str, str]) -> None:
    """Its exporter's metadata show it, and so do its boxes: their third and fourth number are no second corner."""
    rows = np.zeros((1, 300, 6), np.float32)
    rows[0, :, :4] = np.random.default_rng(0).uniform(0.1, 0.9, (300, 4))
    proto = constant({"output0": rows}, (1, 3, 640, 640)).proto
    if about:
        about |= {"task": "detect", "names": str(dict(enumerate(NAMES))), "author": "Ultralytics"}
    for key, text in about.items():
        proto.metadata_props.add(key=key, value=text)
    onnx.save(proto, tmp_path / "net.onnx")
    task = infer(tmp_path / "net.onnx").setting.task
    assert (value_of(task), task.options) == ("yolov10", {"boxes": "relative", "order": "cxcywh"})  # type: ignore[union-attr]
