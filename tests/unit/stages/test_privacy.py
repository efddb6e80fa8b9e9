"""What is to be hidden cannot be seen, in any layout of pixels, and nothing else changes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgert.config import load_pipeline
from edgert.errors import ConfigError, StageError
from edgert.runtime import Result
from edgert.runtime.frame import PixelFormat, bgr_from
from edgert.stages.privacy import Privacy, PrivacySection
from tests.helpers.frames import detections, frame_of, result_of

FORMATS = ("i420", "nv12", "yuyv", "bgr", "rgb", "gray")
SQUARE = ((0.25, 0.25), (0.75, 0.25), (0.75, 0.75), (0.25, 0.75))
SIZE = (64, 48)


def privacy(**keys: Any) -> Privacy:
    return Privacy("hide", PrivacySection.model_validate({"stage": "privacy", "from": "cam", "margin": 0, **keys}))


def hidden(stage: Privacy, form: PixelFormat, outputs: Any = None, size: tuple[int, int] = SIZE) -> tuple[Any, Any]:
    """The image as it was, and as the next stage sees it."""
    frame = frame_of(*size, form)
    before = [plane.copy() for plane in frame.planes]
    out = stage.process(result_of(frame, outputs))
    assert isinstance(out, Result) and out.frame.lease.alive and out.image is None
    assert all((now == then).all() for now, then in zip(frame.planes, before, strict=True))
    return bgr_from(frame), bgr_from(out.frame)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("size", [SIZE, (63, 47)])
def test_an_area_is_black_and_the_rest_as_it_was(form: PixelFormat, size: tuple[int, int]) -> None:
    before, after = hidden(privacy(areas={"square": SQUARE}), form, size=size)
    height, width = size[1], size[0]
    inside = after[height // 4 + 1 : 3 * height // 4, width // 4 + 1 : 3 * width // 4]
    assert inside.max() <= 1
    far = np.ones(before.shape[:2], np.bool_)
    far[height // 4 - 5 : 3 * height // 4 + 6, width // 4 - 5 : 3 * width // 4 + 6] = False
    assert np.array_equal(before[far], after[far])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("how", ["blur", "blocks"])
def test_what_is_blurred_has_lost_its_details(form: PixelFormat, how: Any) -> None:
    before, after = hidden(privacy(areas={"square": SQUARE}, how=how), form)
    cut = np.s_[16:32, 20:44]
    detail = np.abs(np.diff(after[cut].astype(int), axis=1)).mean()
    assert detail < 0.5 * np.abs(np.diff(before[cut].astype(int), axis=1)).mean()
    assert abs(after[cut].mean() - before[cut].mean()) < 20


def test_objects_of_a_class_are_hidden_with_a_margin_and_until_somebody_looks_again() -> None:
    stage = privacy(classes=("nut",), margin=0.5)
    found = {"find": detections((4, 4, 12, 12), (30, 20, 38, 28))}  # a bolt and a nut
    for outputs in (found, {}):
        before, after = hidden(stage, "bgr", outputs)
        assert (after[16:32, 26:42] == 0).all() and np.array_equal(after[:15], before[:15])
    before, after = hidden(stage, "bgr", {"find": detections((4, 4, 12, 12))})
    assert np.array_equal(after, before)
    by_number = privacy(classes=("0",))
    assert (hidden(by_number, "gray", found)[1][5:11, 5:11] == 0).all()


def test_a_crop_hides_its_part_of_the_areas() -> None:
    frame = frame_of(*SIZE, "gray").crop(16, 12, 64, 48)
    out = privacy(areas={"square": SQUARE}).process(result_of(frame))
    image = bgr_from(out.frame)
    assert (image[1:23, 1:31] == 0).all() and (image[30:, 40:] > 0).all()


def test_frames_that_are_held_do_not_change() -> None:
    stage = privacy(areas={"square": SQUARE})
    held = [stage.process(result_of(frame_of(*SIZE, "gray", index=n))) for n in range(12)]
    seen = [one.frame.planes[0].copy() for one in held]
    for n in range(12, 24):
        stage.process(result_of(frame_of(*SIZE, "gray", index=n)))
    assert all((one.frame.planes[0] == then).all() for one, then in zip(held, seen, strict=True))
    stage.close()


def test_a_class_that_nobody_knows_is_an_error_and_not_a_leak() -> None:
    stage = privacy(classes=("nuts",))
    with pytest.raises(StageError, match="no class 'nuts'; did you mean 'nut'"):
        stage.process(result_of(outputs={"find": detections((1, 1, 9, 9))}))


FILE = """
models: {m: {onnx: m.onnx, task: {detect: yolox}}}
stages:
  cam: {source: synthetic:noise}
"""
AREA = "areas: {a: [[0, 0], [1, 0], [1, 1]]}"


@pytest.mark.parametrize(
    ("stages", "what"),
    [
        ("  x: {stage: privacy, from: cam}", "expected areas: or classes:"),
        ("  x: {stage: privacy, from: cam, areas: {a: [[0, 0], [1, 1]]}}", "area 'a' needs three points or more"),
        ("  x: {stage: privacy, from: cam, areas: {a: [[0, 0], [1, 1], [1, 0], [0, 1]]}}", "crosses itself"),
        (f"  x: {{stage: privacy, from: cam, how: blurr, {AREA}}}", "cannot use 'blurr'"),
        (f"  x: {{stage: privacy, from: cam, {AREA}}}\n  find: {{infer: m, from: cam}}", "'find' gets the frames of"),
        (f"  p: {{draw: boxes, from: cam}}\n  x: {{stage: privacy, from: p, {AREA}}}", "comes behind 'p'"),
    ],
)
def test_files_that_would_hide_nothing_are_refused(tmp_path: Path, stages: str, what: str) -> None:
    (tmp_path / "m.onnx").touch()
    (tmp_path / "p.yaml").write_text(FILE + stages + "\n")
    with pytest.raises(ConfigError) as caught:
        load_pipeline(tmp_path / "p.yaml")
    assert what in f"{caught.value.what} {caught.value.why}"
