"""Tiles of a frame: where they lie, what is put together across their seams, and what is not."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgert.config.stages import TileConfig
from edgert.errors import StageError
from edgert.runtime import Classification, Detections, Frame, Segmentation
from edgert.stages.crop import Geometry
from edgert.stages.tiles import InferTiles, merge_tiles, tiles_of
from tests.helpers.frames import frame_of, result_of

F32 = npt.NDArray[np.float32]


def config(grid: str = "2x1", **keys: Any) -> TileConfig:
    return TileConfig.model_validate({"grid": grid, **keys})


def found(*rows: tuple[float, ...], classes: Sequence[int] | None = None) -> Detections:
    """x1, y1, x2, y2, score."""
    table = np.array(rows, np.float32).reshape(-1, 5)
    order = np.argsort(-table[:, 4], kind="stable")
    numbers = np.zeros(len(rows), np.int32) if classes is None else np.array(classes, np.int32)
    return Detections(table[order, :4], table[order, 4], numbers[order], ("bird", "plane"))


def test_tiles_overlap_and_cover_the_frame() -> None:
    (left, right, whole) = tiles_of(180, 100, config(overlap=0.2))
    assert left == (0, 0, 100, 100) and right == (80, 0, 180, 100) and whole == (0, 0, 180, 100)
    for grid in ("1x2", "3x2", "4x4"):
        for overlap in (0.0, 0.1, 0.33, 0.5):
            seen = np.zeros((481, 641), np.int64)
            places = tiles_of(641, 481, config(grid, overlap=overlap, whole=False))
            for x1, y1, x2, y2 in places:
                seen[y1:y2, x1:x2] += 1
            assert seen.min() >= 1 and (overlap > 0 or seen.max() == 1)
            assert len({(x2 - x1) // 2 for x1, _, x2, _ in places}) <= 2  # alike, up to rounding


def parts(one: TileConfig, frame: Frame) -> list[Frame]:
    return [frame.crop(*place) for place in tiles_of(frame.width, frame.height, one)]


def join(one: TileConfig, *records: Detections) -> Detections:
    frame = frame_of(180, 100)
    return merge_tiles(records, parts(one, frame), frame, one)


def test_an_object_across_a_seam_is_one() -> None:
    seam = config(overlap=0.2, whole=False)
    cut, other = found((60, 20, 100, 40, 0.6)), found((80, 20, 120, 40, 0.9))
    one = join(seam, cut, other)
    assert one.boxes.tolist() == [[60, 20, 120, 40]] and one.scores.tolist() == pytest.approx([0.9])
    best = join(config(overlap=0.2, whole=False, merge="nms"), cut, other)
    assert best.boxes.tolist() == [[80, 20, 120, 40]]
    assert len(join(config(overlap=0.2, whole=False, match=0.6), cut, other)) == 2


def test_a_part_in_the_whole_frames_box_belongs_to_it() -> None:
    large = found((10, 10, 170, 90, 0.5))
    one = join(config(), found((10, 10, 100, 90, 0.8)), found((80, 10, 170, 90, 0.7)), large)
    assert one.boxes.tolist() == [[10, 10, 170, 90]] and one.scores.tolist() == pytest.approx([0.8])


def test_objects_before_one_another_stay_two() -> None:
    """Inside of a large box, and not cut off by a tile: another object."""
    one = join(config(), found((30, 30, 50, 50, 0.8)), found(), found((10, 10, 170, 90, 0.5)))
    assert len(one) == 2
    same_tile = join(config(), found((30, 30, 60, 60, 0.8), (32, 32, 60, 60, 0.7)), found(), found())
    assert len(same_tile) == 2
    classes = join(config(), found((10, 10, 100, 90, 0.8), classes=[1]), found(), found((10, 10, 170, 90, 0.5)))
    assert len(classes) == 2 and classes.classes.tolist() == [1, 0]


def test_nothing_is_found_in_any_tile() -> None:
    one = join(config(), found(), found(), found())
    assert len(one) == 0 and one.boxes.shape == (0, 4) and one.labels == ("bird", "plane")


def test_corners_and_points_of_the_best_stay_with_it() -> None:
    def turned(row: tuple[float, ...], mark: float) -> Detections:
        plain = found(row)
        corners, points = np.full((1, 4, 2), mark, np.float32), np.full((1, 5, 3), mark, np.float32)
        return Detections(plain.boxes, plain.scores, plain.classes, corners=corners, points=points, names=("eye",))

    one = join(config(whole=False), turned((60, 20, 100, 40, 0.6), 1), turned((62, 20, 100, 40, 0.9), 2))
    assert one.corners is not None and one.points is not None and one.names == ("eye",)
    assert one.corners[0, 0, 0] == one.points[0, 0, 0] == 2 and one.boxes.tolist() == [[62, 20, 100, 40]]


def test_what_cannot_be_put_together_is_named() -> None:
    masks = found((1, 1, 9, 9, 0.9))
    with_masks = Detections(
        masks.boxes, masks.scores, masks.classes, masks=(Segmentation(np.ones((2, 2), np.uint8), (1, 1, 9, 9)),)
    )
    with pytest.raises(StageError, match="with masks"):
        join(config(whole=False), with_masks, masks)
    with pytest.raises(StageError, match="tiles of Classification cannot be merged\n"):
        join(config(whole=False), Classification(np.ones(1, np.float32), np.zeros(1, np.int32)))  # type: ignore[arg-type]


class Finds:
    """A model that finds the bright square of each image, in as many rows as it is told."""

    idle = True

    def __init__(self, rows: int) -> None:
        self.rows, self.filled, self.runs = rows, dict[int, Frame](), list[int]()

    def warm_up(self) -> None: ...

    def fill(self, frame: Frame, row: int = 0) -> Geometry:
        assert row == len(self.filled) < self.rows
        self.filled[row] = frame
        x, y = frame.region[:2]
        return Geometry(1, 1, x, y, (frame.width, frame.height), (0, 0, 1e6, 1e6))

    def run(self, *geometries: Geometry) -> list[Detections]:
        records, self.filled, frames = [], {}, list(self.filled.values())
        self.runs.append(len(frames))
        for frame in frames:
            y, x = np.nonzero(frame.planes[0] == 255)
            box = [(x.min(), y.min(), x.max() + 1, y.max() + 1, 0.5)] if len(x) else []
            plain = found(*box)
            records.append(Detections(plain.boxes + np.array(frame.region[:2] * 2), plain.scores, plain.classes))
        return records


@pytest.mark.parametrize("rows", [1, 2, 5, 8])
def test_a_stage_looks_at_views_of_the_frame_as_many_at_once_as_fit(rows: int) -> None:
    pixels = np.zeros((200, 300), np.uint8)
    pixels[90:120, 130:170] = 255  # across all four tiles
    frame, model = frame_of(300, 200, "gray", pixels=(pixels,)), Finds(rows)
    stage = InferTiles("find", model, config("2x2"), every=2)
    out = stage.process(result_of(frame))
    assert sum(model.runs) == 5 and max(model.runs) == min(rows, 5)
    assert out.outputs["find"].boxes.tolist() == [[130, 90, 170, 120]]
    assert all(np.shares_memory(part.planes[0], pixels) for part in parts(config("2x2"), frame))
    skipped = frame_of(300, 200, "gray", pixels=(pixels,), index=1)
    assert stage.process(result_of(skipped)).outputs == {}


def test_one_object_of_two_classes_is_one_where_asked() -> None:
    seam, frame = config(overlap=0.2, whole=False), frame_of(180, 100)
    records = found((60, 20, 100, 40, 0.6), classes=[1]), found((80, 20, 120, 40, 0.9), classes=[0])
    assert len(merge_tiles(records, parts(seam, frame), frame, seam)) == 2
    one = merge_tiles(records, parts(seam, frame), frame, seam, agnostic=True)
    assert one.boxes.tolist() == [[60, 20, 120, 40]] and one.classes.tolist() == [0]
