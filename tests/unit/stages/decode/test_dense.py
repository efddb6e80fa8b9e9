"""Depth, images and anomalies: numbers for every pixel."""

import numpy as np
import pytest

from edgert.errors import ModelError
from edgert.runtime import AnomalyMap, DepthMap, OutputImage, Result
from edgert.runtime.json_form import plain
from edgert.stages.crop import Geometry
from edgert.stages.decode.dense import Anomaly, Depth, ImageToImage
from edgert.stages.draw import ImagePainter, Overlay
from tests.helpers.frames import frame_of
from tests.helpers.known_boxes import identity

LETTERBOX = Geometry(2, 2, 0, -16, (64, 48), (0, 0, 128, 64))
"""A 128x64 image in the middle of a 64x48 input, 8 rows of padding above and below."""


@pytest.mark.parametrize("shape", [(1, 24, 32), (24, 32), (24, 32, 1), (1, 48, 64)])
def test_depth_is_cut_to_the_image(shape: tuple[int, ...]) -> None:
    rows, columns = (size for size in shape if size != 1)
    values = np.arange(rows * columns, dtype=np.float32).reshape(shape)
    record = Depth("metric")([values], LETTERBOX)
    margin = rows // 6
    np.testing.assert_array_equal(record.depth, values.reshape(rows, columns)[margin:-margin])
    assert record.region == (0, 0, 128, 64) and record.unit == "metric"
    data = plain(record)
    assert data["size"] == [columns, rows - 2 * margin] and data["least"] == margin * columns
    assert data["unit"] == "metric" and data["median"] == pytest.approx((rows * columns - 1) / 2)


def test_depth_without_numbers_is_null() -> None:
    data = plain(DepthMap(np.full((2, 2), np.nan, np.float32), (0, 0, 2, 2), "inverse"))
    assert (data["least"], data["median"], data["greatest"]) == (None, None, None)


@pytest.mark.parametrize(("kind", "scale", "offset"), [("unit", 255, 0), ("byte", 1, 0), ("signed", 127.5, 127.5)])
@pytest.mark.parametrize("color", ["rgb", "bgr"])
@pytest.mark.parametrize("layout", ["chw", "hwc", "gray"])
def test_images_are_as_by_one_number_after_the_other(
    kind: str, scale: float, offset: float, color: str, layout: str
) -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        values = ((rng.uniform(-60, 310, (96, 128, 3)) - offset) / scale).astype(np.float32)
        expected = np.clip(np.rint(values.astype(np.float64) * scale + offset), 0, 255)[16:-16]
        output = values if layout == "hwc" else values.transpose(2, 0, 1)
        if layout == "gray":
            output, expected = output[:1], np.repeat(expected[..., :1], 3, axis=2)
        record = ImageToImage(kind, color)([output], LETTERBOX)  # type: ignore[arg-type]
        found = record.pixels[..., ::-1] if color == "rgb" and layout != "gray" else record.pixels
        assert record.pixels.dtype == np.uint8 and record.region == (0, 0, 128, 64)
        assert np.abs(found - expected).max() <= 1 and (found == expected).mean() > 0.999  # halves may go either way


def test_the_image_of_a_model_is_that_of_the_result() -> None:
    frame = frame_of(128, 64)
    record = OutputImage(np.full((32, 64, 3), 200, np.uint8), (0, 0, 128, 64))
    result = Result(frame).with_output("night", record)
    assert result.image is record.pixels and ImagePainter().host_image(result) is record.pixels
    painted = ImagePainter().paint(result, None, lambda size: [])
    assert painted.shape == (32, 64, 3) and (painted == 200).all() and painted is not record.pixels
    assert plain(record) == {"type": "image", "region": [0.0, 0.0, 128.0, 64.0], "size": [64, 32]}


def test_anomalib_exports() -> None:
    """A score, a label, a map and a mask; the numbers are taken, not what is true or false."""
    heat = np.random.default_rng(0).uniform(0, 0.4, (1, 48, 64)).astype(np.float32)
    heat[0, 20, 30] = 0.9
    outputs = [np.array([0.7], np.float32), np.array([True]), heat, heat > 0.5]
    record = Anomaly()(outputs, LETTERBOX)
    np.testing.assert_array_equal(record.scores, heat[0, 8:-8])
    assert record.score == pytest.approx(0.7) and record.is_anomalous
    data = plain(record)
    assert data["peak"] == [61.0, 25.0] and data["is_anomalous"] is True and data["size"] == [64, 32]
    alone = Anomaly(threshold=0.95)([heat], LETTERBOX)
    assert alone.score == pytest.approx(0.9) and not alone.is_anomalous


def test_draw_shows_depth_and_anomalies() -> None:
    frame, image = frame_of(128, 64), np.full((64, 128, 3), 90, np.uint8)
    depth = np.tile(np.linspace(0, 1, 64, dtype=np.float32), (32, 1))
    near = image.copy()
    Overlay(["masks"]).paint(near, Result(frame, {"depth": DepthMap(depth, (0, 0, 128, 64), "inverse")}))
    assert near[30, 125, 2] > near[30, 125, 0] and near[30, 8, 0] > near[30, 8, 2]  # red is near, blue far
    far = image.copy()
    Overlay(["masks"]).paint(far, Result(frame, {"depth": DepthMap(depth, (0, 0, 128, 64), "metric")}))
    np.testing.assert_allclose(far[:, 10:-10], near[:, 10:-10][:, ::-1], atol=8)
    scores = np.zeros((32, 64), np.float32)
    scores[10:20, 10:20] = 1
    odd, record = image.copy(), AnomalyMap(scores, (0, 0, 128, 64), 1.0, 0.5)
    Overlay(["masks", "labels"]).paint(odd, Result(frame, {"look": record}))
    assert (odd[50:, 60:] == 90).all() and odd[30, 30, 2] > 90
    assert (odd[:10, :40] != 90).any(), "a line tells the score"


def test_draw_writes_what_is_read_and_who_it_is() -> None:
    from edgert.runtime import Attributes, Classification, Crops, Detections, Embedding, Text
    from edgert.stages.shapes import note_texts

    one = Classification(np.array([0.9], np.float32), np.array([1], np.int32), ("car", "van"))
    assert note_texts(Text("A-17", 0.8)) == ["A-17"] and note_texts(Text("", 0)) == []
    assert note_texts(Embedding(np.ones(2), "Anna", 0.81)) == ["Anna 0.81"] and note_texts(Embedding(np.ones(2))) == []
    assert note_texts(Attributes({"type": one, "age": 31.0})) == ["type: van 0.90", "age: 31"]
    boxes = np.array([[20, 10, 60, 30]], np.float32)
    parent = Detections(boxes, np.ones(1, np.float32), np.zeros(1, np.int32))
    result = Result(frame_of(128, 64), {"find": parent, "read": Crops("find", np.array([0]), (Text("A-17", 0.8),))})
    image = np.zeros((64, 128, 3), np.uint8)
    Overlay(["labels"]).paint(image, result)
    assert image[33:60, 20:60].any()
    assert plain(Attributes({"type": one, "age": 31.0}))["heads"]["type"]["classes"][0]["label"] == "van"


def test_a_map_of_true_and_false_alone_is_refused() -> None:
    with pytest.raises(ModelError, match="not of floats"):
        Anomaly()([np.zeros((1, 64, 64), np.bool_)], identity((64, 64)))
