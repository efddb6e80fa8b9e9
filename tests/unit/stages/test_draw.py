from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from edgert.config.stages import DrawStage
from edgert.memory import Counter
from edgert.runtime.frame import U8, Frame
from edgert.runtime.records import Classification, Crops, Detections, Keypoints, Result, Segmentation
from edgert.stages import draw as overlay_module
from edgert.stages.draw import Draw, Trails
from edgert.stages.paint import INK, WHITE, Label, Pen, color_of, text_color
from tests.helpers.frames import detections, frame_of, result_of
from tests.helpers.overlay_scenes import busy_scene
from tests.helpers.virtual_clock import VirtualClock

GRAY = 128


def stage(*elements: str, width: int | None = None) -> Draw:
    return Draw("paint", DrawStage.model_validate({"draw": elements, "from": "x", "width": width}), VirtualClock())


def plain_frame(width: int = 320, height: int = 240, counter: Counter | None = None, index: int = 0) -> Frame:
    pixels = (np.full((height, width, 3), GRAY, np.uint8),)
    return frame_of(width, height, pixels=pixels, counter=counter, index=index)


def drawn(elements: Sequence[str], outputs: dict[str, object], frame: Frame | None = None) -> U8:
    image = stage(*elements).process(result_of(frame or plain_frame(), outputs)).image
    assert image is not None
    return image


def changed(image: U8) -> npt.NDArray[np.bool_]:
    return (image != GRAY).any(axis=2)


def extent(touched: npt.NDArray[np.bool_]) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(touched.any(axis=1)), np.flatnonzero(touched.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]), int(rows[-1])


def test_a_box_changes_its_border_and_nothing_else() -> None:
    image = drawn(["boxes"], {"find": detections((40, 60, 200, 180))})
    touched = changed(image)
    assert tuple(image[60, 120]) == color_of(0)  # top edge, in the color of class 0
    assert tuple(image[120, 40]) == tuple(image[120, 200]) == tuple(image[180, 120]) == color_of(0)
    assert not touched[65:175, 45:195].any()
    left, top, right, bottom = extent(touched)
    assert (abs(left - 40), abs(top - 60), abs(right - 200), abs(bottom - 180)) <= (3, 3, 3, 3)


@pytest.mark.parametrize(("element", "loads"), [("labels", True), ("stats", True), ("boxes", False)])
def test_the_font_is_loaded_before_the_first_frame(monkeypatch: pytest.MonkeyPatch, element: str, loads: bool) -> None:
    measured: list[str] = []
    monkeypatch.setattr(Pen, "_text_width", lambda self, text, size: measured.append(text) or 1)
    stage(element).open()
    assert bool(measured) == loads


def test_the_frame_itself_is_never_touched() -> None:
    frame = plain_frame()
    drawn(["boxes", "labels", "stats"], {"find": detections((40, 60, 200, 180))}, frame)
    assert (frame.planes[0] == GRAY).all()


def test_boxes_follow_a_scaled_image_and_a_cropped_frame() -> None:
    record = detections((40, 60, 200, 180))
    small = stage("boxes", width=160).process(result_of(plain_frame(), {"find": record})).image
    assert small is not None and small.shape == (120, 160, 3)
    assert np.allclose(extent(changed(small)), (20, 30, 100, 90), atol=3)
    crop = drawn(["boxes"], {"find": record}, plain_frame().crop(20, 50, 320, 240))
    assert np.allclose(extent(changed(crop)), (20, 10, 180, 130), atol=3)


def test_boxes_far_outside_and_not_finite_do_no_harm() -> None:
    record = detections((-1e9, -1e9, -1e8, -1e8), (np.nan, 0, np.inf, 5), (400, 400, 1e12, 1e12))
    image = drawn(["boxes", "labels"], {"find": record})
    assert image.shape == (240, 320, 3)


def test_labels_stand_above_the_box_or_inside_at_the_top_of_the_image() -> None:
    above = extent(changed(drawn(["labels"], {"find": detections((40, 60, 200, 180))})))
    assert above[3] < 60 and 38 <= above[0] <= 40
    inside = extent(changed(drawn(["labels"], {"find": detections((40, 2, 200, 180))})))
    assert 0 <= inside[1] <= 2 and inside[3] < 40


def test_a_label_at_the_right_edge_stays_in_the_image() -> None:
    whole = extent(changed(drawn(["labels"], {"find": detections((40, 60, 200, 180))})))
    edge = extent(changed(drawn(["labels"], {"find": detections((310, 60, 320, 180))})))
    assert edge[2] == 319 and edge[2] - edge[0] == whole[2] - whole[0]


def test_a_tracked_object_keeps_its_color_and_is_drawn_once() -> None:
    found = detections((40, 60, 200, 180))
    tracked = detections((42, 62, 198, 178), ids=(5,))
    image = drawn(["boxes"], {"find": found, "track": tracked})
    assert np.array_equal(image, drawn(["boxes"], {"track": tracked}))
    assert tuple(image[62, 120]) == color_of(5)
    other_class = replace(tracked, classes=np.array([2], np.int32))
    assert np.array_equal(image, drawn(["boxes"], {"track": other_class}))


def test_two_detectors_are_both_drawn() -> None:
    first = detections((10, 10, 60, 60))
    second = replace(detections((100, 100, 160, 160)), labels=("face",))
    touched = changed(drawn(["boxes"], {"a": first, "b": second}))
    assert touched[10, 30] and touched[100, 130]


def test_a_mask_is_blended_and_its_background_left_alone() -> None:
    mask = np.zeros((12, 16), np.uint8)
    mask[:, 8:] = 2
    region = (0.0, 0.0, 320.0, 240.0)
    image = drawn(["masks"], {"s": Segmentation(mask, region, ("background", "road", "car"))})
    assert not changed(image)[:, :140].any()
    assert np.abs(image[120, 300].astype(int) - (GRAY + np.array(color_of(2))) / 2).max() <= 2
    first_counts = drawn(["masks"], {"s": Segmentation(mask, region, ("road", "car", "sky"))})
    assert changed(first_counts).all()


def test_a_mask_that_covers_a_part_or_hangs_over_the_edge() -> None:
    mask = np.ones((4, 4), np.uint8)
    image = drawn(["masks"], {"s": Segmentation(mask, (280, 200, 400, 300))})
    touched = changed(image)
    assert touched[205:, 285:].all() and not touched[:200].any() and not touched[:, :280].any()
    assert not changed(drawn(["masks"], {"s": Segmentation(mask, (400, 300, 500, 400))})).any()


def test_oriented_boxes_are_drawn_along_their_sides_and_masks_in_their_color() -> None:
    boxes, one = np.array([[60, 60, 140, 140]], np.float32), np.ones(1, np.float32)
    corners = np.array([[[100, 60], [140, 100], [100, 140], [60, 100]]], np.float32)
    record = Detections(boxes, one, np.array([3], np.int32), corners=corners)
    touched = changed(drawn(["boxes"], {"find": record}))
    assert touched[80, 120] and touched[120, 80] and not touched[100, 100] and not touched[62, 62]
    mask = Segmentation(np.array([[0, 1]], np.uint8), (60.0, 60.0, 140.0, 140.0))
    image = drawn(["masks"], {"find": replace(record, masks=(mask,))})
    touched = changed(image)
    assert touched[70:130, 125:135].all() and not touched[:, :75].any()
    whole = drawn(["masks"], {"s": Segmentation(mask.mask * np.uint8(3), mask.region)})
    assert np.array_equal(image, whole)


def test_the_bones_of_a_body_join_its_points() -> None:
    points = np.zeros((1, 17, 3), np.float32)
    points[0, 5], points[0, 7] = (100, 50, 0.9), (100, 150, 0.9)  # left shoulder and elbow
    record = Keypoints.of(np.zeros((1, 4), np.float32), np.ones(1, np.float32), points)
    touched = changed(drawn(["keypoints"], {"pose": record}))
    assert touched[100, 100] and touched[50, 100] and touched[150, 100]
    assert not touched[:40].any() and not touched[160:].any()
    unsure = replace(record, points=points * np.array([1, 1, 0.1], np.float32))
    assert not changed(drawn(["keypoints"], {"pose": unsure})).any()


def test_points_of_another_skeleton_are_dots_only() -> None:
    points = np.array([[[50, 50, 1], [200, 50, 1]]], np.float32)
    record = Keypoints.of(np.zeros((1, 4), np.float32), np.ones(1, np.float32), points)
    touched = changed(drawn(["keypoints"], {"pose": record}))
    assert touched[50, 50] and touched[50, 200] and not touched[50, 100:150].any()


def test_what_is_drawn_is_a_list_in_painting_order() -> None:
    frame, elements = plain_frame(), ("boxes", "labels", "masks", "keypoints", "trails", "stats")
    overlay = overlay_module.Overlay(elements, VirtualClock())
    for step in range(5):
        kinds = [type(one).__name__ for one in overlay.shapes((160, 120), busy_scene(frame, step, 4, bodies=1))]
    order = [kind for kind, _ in groupby(kinds)]
    assert order[:3] == ["Mask", "Stroke", "Box"] and order[-1] == "Label" and kinds.count("Box") == 5
    assert set(order[3:-1]) == {"Stroke", "Dot"} and kinds.count("Label") == 4 + 1


@pytest.mark.parametrize("size", [(1280, 720), (640, 480), (240, 426)])
@pytest.mark.parametrize("tile_px", [180, 260, 540])
def test_text_of_a_tile_is_read_at_the_width_it_is_shown_in(size: tuple[int, int], tile_px: int) -> None:
    overlay = overlay_module.Overlay(("labels", "zones", "stats"), VirtualClock(), tile_px)
    written = [one for one in overlay.shapes(size, busy_scene(plain_frame(), 0, 4)) if isinstance(one, Label)]
    shown = min(tile_px / size[0], tile_px * 9 / 16 / size[1])  # screen pixels per image pixel
    assert len(written) == 5 and all(abs(one.pen.height_px * shown - 11) < 0.6 for one in written)
    assert all("0." not in one.text and "#" not in one.text for one in written[:4])


def test_trails_follow_an_object() -> None:
    paint = stage("trails")
    for index in range(20):
        x = 20 + 10 * index
        track = detections((x, 100, x + 20, 120), ids=(3,))
        result = paint.process(result_of(plain_frame(index=index), {"track": track}))
    assert result.image is not None
    touched = changed(result.image)
    assert touched[110, 40:210].all() and not touched[:100].any() and not touched[:, 230:].any()


def test_trails_of_lost_objects_are_forgotten() -> None:
    trails = Trails()
    for _ in range(100):
        trails.add(detections((0, 0, 10, 10), ids=(1,)))
    ((_, places),) = trails.paths(detections((0, 0, 10, 10), ids=(1,)))
    assert places.shape == (30, 2)
    for _ in range(31):
        trails.add(detections((0, 0, 10, 10), ids=(2,)))
    assert trails.paths(detections((0, 0, 10, 10), ids=(1,))) == []


def test_what_a_second_model_says_stands_under_its_box() -> None:
    parent = detections((100, 60, 200, 120), ids=(4,))
    plate = Classification(np.array([0.9], np.float32), np.array([0], np.int32), ("AB 123",))
    for record in (plate, "AB 123"):
        outputs = {"track": parent, "read": Crops("track", np.array([0], np.int32), (record,))}
        left, top, _, bottom = extent(changed(drawn(["labels"], outputs)))
        alone = extent(changed(drawn(["labels"], {"track": parent})))
        assert left <= 100 and top == alone[1] and 120 < bottom < 150


def test_boxes_found_inside_a_box_are_drawn() -> None:
    nested = Crops("gone", np.array([9], np.int32), (detections((120, 80, 160, 110)),))
    touched = changed(drawn(["boxes", "labels"], {"read": nested}))
    assert touched[80, 140] and touched[110, 140]


def test_classes_of_the_whole_image_and_the_stats_stand_in_the_corner() -> None:
    whole = Classification(np.array([0.9, 0.1], np.float32), np.array([0, 1], np.int32), ("cat", "dog"))
    left, top, right, bottom = extent(changed(drawn(["labels", "stats"], {"c": whole})))
    assert left < 10 and top < 10 and right < 320 and bottom < 80


def test_a_image_is_as_large_as_the_frame_and_counted_once() -> None:
    counter = Counter()
    frame = frame_of(33, 21, "i420", counter=counter)
    image = stage("boxes").process(Result(frame)).image
    assert image is not None and image.shape == (21, 33, 3)
    assert np.array_equal(image, frame.to_bgr())
    assert counter.read().copies == 2 and counter.read().bytes_copied == 2 * image.nbytes


def test_drawing_on_a_drawn_image_leaves_the_first_alone() -> None:
    first = stage("boxes").process(result_of(plain_frame(), {"find": detections((10, 10, 60, 60))}))
    assert first.image is not None
    before = first.image.copy()
    second = stage("boxes").process(first.with_output("more", detections((100, 100, 160, 160), ids=(1,))))
    smaller = stage("boxes", width=160).process(first)
    assert np.array_equal(first.image, before)
    assert second.image is not None and changed(second.image)[100, 130]
    assert smaller.image is not None and smaller.image.shape == (120, 160, 3)


def test_images_are_used_again_but_never_while_somebody_looks() -> None:
    counter, paint = Counter(), stage("boxes")
    kept = paint.process(Result(plain_frame(counter=counter))).image
    assert kept is not None
    view = kept[10:20]
    del kept
    view[:] = 7
    for index in range(50):
        paint.process(Result(plain_frame(counter=counter, index=index)))
    assert (view == 7).all()
    after = counter.read()
    for index in range(200):
        paint.process(Result(plain_frame(counter=counter, index=index)))
    assert counter.read().allocations == after.allocations


@pytest.mark.parametrize("size", [(320, 240), (640, 360), (1280, 720), (1920, 1080)])
def test_text_and_lines_grow_with_the_image(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    width, height = size
    left, top, right, bottom = extent(
        changed(drawn(["labels"], {"f": detections((50, 100, 200, 200))}, plain_frame(width, height)))
    )
    assert 0.015 < (bottom - top) / height < 0.09 and (right - left) / width < 0.4


def test_older_opencv_writes_with_strokes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cv2, "FontFace", raising=False)
    overlay_module._pen.cache_clear()
    try:
        left, top, right, bottom = extent(changed(drawn(["labels"], {"find": detections((40, 60, 200, 180))})))
    finally:
        overlay_module._pen.cache_clear()
    assert bottom < 60 and top > 30 and 30 < right - left < 160


def test_text_is_readable_on_every_color() -> None:
    for number in range(14):
        ground = color_of(number)
        luma = np.array([(0.0722, 0.7152, 0.2126)]) @ np.array([ground, text_color(ground)], float).T
        assert abs(luma[0, 0] - luma[0, 1]) > 85
    assert (text_color(WHITE), text_color(INK)) == (INK, WHITE)


def test_a_word_is_as_wide_as_its_letters() -> None:
    narrow, wide = (Pen(20).label((400, 100), text, 0, 0, (90, 90, 90)).width for text in ("i", "wide word"))
    assert wide > 3 * narrow
