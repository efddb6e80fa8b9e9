"""Messages of a camera's topics made into images, and back."""

import struct
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import pytest

from edgert.clock import REAL
from edgert.errors import DeviceError
from edgert.memory import Counter, lend
from edgert.recording.cdr import decode, encode
from edgert.recording.definitions import CAMERA_INFO, COMPRESSED_IMAGE, IMAGE
from edgert.runtime.frame import Frame, bgr_from
from edgert.stages.ros2.ros_images import CameraTopics, Incoming, header, image_message, jpeg_message
from edgert.stages.source.live import MismatchError
from edgert.stages.source.timeline import Image

MS = 1_000_000
RNG = np.random.default_rng(5)


def camera(*, depth: bool = False, goes_back: bool = True, counter: Counter | None = None) -> CameraTopics:
    return CameraTopics("topic /a", "stages.cam", depth, counter or Counter(), REAL, None, goes_back)


def message(pixels: np.ndarray, encoding: str, time_ns: int = 10**12, **fields: Any) -> bytes:
    about = {"height": pixels.shape[0], "width": pixels.shape[1], "encoding": encoding}
    data = np.ascontiguousarray(pixels)
    fields = {"step": data.nbytes // pixels.shape[0], **fields}
    return b"".join(encode(IMAGE, {**header(time_ns, "mast"), **about, **fields, "data": data.data}))


def taken(into: CameraTopics, data: bytes, kind: str = IMAGE, role: Any = "image", at_ns: int = 0) -> list[Image]:
    return list(into.images(Incoming(role, kind, data, at_ns), at_ns))


@pytest.mark.parametrize(
    ("encoding", "shape", "format"),
    [
        ("bgr8", (6, 8, 3), "bgr"),
        ("8UC3", (6, 8, 3), "bgr"),
        ("rgb8", (6, 8, 3), "rgb"),
        ("mono8", (6, 8), "gray"),
        ("8UC1", (6, 8), "gray"),
        ("yuyv", (6, 8, 2), "yuyv"),
        ("yuv422_yuy2", (6, 8, 2), "yuyv"),
    ],
)
def test_pixels_are_read_where_the_message_lies(encoding: str, shape: tuple[int, ...], format: str) -> None:
    pixels, counter = RNG.integers(0, 256, shape, np.uint8), Counter()
    data = message(pixels, encoding)
    (image,) = taken(camera(counter=counter), data)
    assert image.format == format and (image.planes[0] == pixels).all()
    assert np.shares_memory(image.planes[0], np.frombuffer(data, np.uint8))
    assert counter.read().copies == 0
    assert (image.sender_ns, image.media_ns) == (10**12, 10**12)


@pytest.mark.parametrize(
    ("encoding", "shape", "code"),
    [
        ("bgra8", (6, 8, 4), cv2.COLOR_BGRA2BGR),
        ("rgba8", (6, 8, 4), cv2.COLOR_RGBA2BGR),
        ("8UC4", (6, 8, 4), cv2.COLOR_BGRA2BGR),
        ("uyvy", (6, 8, 2), cv2.COLOR_YUV2BGR_UYVY),
        ("yuv422", (6, 8, 2), cv2.COLOR_YUV2BGR_UYVY),
        ("bayer_rggb8", (6, 8), cv2.COLOR_BayerRGGB2BGR),
        ("bayer_bggr8", (6, 8), cv2.COLOR_BayerBGGR2BGR),
        ("bayer_gbrg8", (6, 8), cv2.COLOR_BayerGBRG2BGR),
        ("bayer_grbg8", (6, 8), cv2.COLOR_BayerGRBG2BGR),
    ],
)
def test_other_encodings_are_converted(encoding: str, shape: tuple[int, ...], code: int) -> None:
    pixels = RNG.integers(0, 256, shape, np.uint8)
    (image,) = taken(camera(), message(pixels, encoding))
    assert image.format == "bgr" and (image.planes[0] == cv2.cvtColor(pixels, code)).all()


def test_a_bayer_pattern_is_named_by_its_first_pixels() -> None:
    pixels = np.zeros((8, 8), np.uint8)
    pixels[::2, ::2] = 200  # red at the place that RGGB begins with
    (image,) = taken(camera(), message(pixels, "bayer_rggb8"))
    blue, green, red = image.planes[0][4, 4]
    assert red == 200 and blue == 0 and green == 0


def test_rows_may_be_padded() -> None:
    wide = RNG.integers(0, 256, (6, 10, 3), np.uint8)
    (image,) = taken(camera(), message(wide, "bgr8", width=8))
    assert (image.planes[0] == wide[:, :8]).all()


@pytest.mark.parametrize("fields", [{"height": 7}, {"step": 3}, {"width": 0}, {"step": 2**31}, {"height": 2**32 - 1}])
def test_messages_that_are_too_short_for_their_size_are_skipped(fields: dict[str, int]) -> None:
    into = camera()
    data = b"".join(
        encode(IMAGE, {"height": 6, "width": 8, "encoding": "bgr8", "step": 24, "data": bytes(144), **fields})
    )
    assert taken(into, data) == [] and into.skipped == 1


def test_other_encodings_name_those_that_fit() -> None:
    with pytest.raises(MismatchError, match="encoding '16UC1'") as caught:
        taken(camera(), message(np.zeros((4, 4), np.uint16), "16UC1"))
    assert "bgr8" in str(caught.value) and "options: {depth: TOPIC}" in str(caught.value)
    with pytest.raises(MismatchError, match="format 'h264'"):
        data = b"".join(encode(COMPRESSED_IMAGE, {"format": "h264", "data": b"\0\0\0\1abc"}))
        taken(camera(), data, COMPRESSED_IMAGE)


@pytest.mark.parametrize("role", ["image", "depth"])
def test_an_image_of_another_publisher_on_the_topic_ends_nothing(role: str, caplog: pytest.LogCaptureFixture) -> None:
    into, pixels = camera(depth=role == "depth"), np.zeros((6, 8, 3), np.uint8)
    own = np.zeros((6, 8), np.uint16), "16UC1"
    if role == "depth":
        taken(into, message(*own), IMAGE, "depth")
    assert len(taken(into, message(pixels, "bgr8"))) == 1
    for _ in range(3):
        assert taken(into, message(np.zeros((6, 8, 6), np.uint8), "rgb16"), IMAGE, role) == []
    assert into.skipped == 3 and caplog.text.count("a message is skipped") == 1 and "'rgb16'" in caplog.text
    taken(into, message(*own, 10**12 + MS), IMAGE, role)
    assert len(taken(into, message(pixels, "bgr8", 10**12 + 2 * MS))) == 1


def test_a_depth_topic_without_depth_is_named_also_behind_an_image() -> None:
    into, pixels = camera(), np.zeros((6, 8, 3), np.uint8)
    assert len(taken(into, message(pixels, "bgr8"))) == 1
    with pytest.raises(MismatchError, match="depth topic"):
        taken(into, message(pixels, "bgr8"), IMAGE, "depth")


@pytest.mark.parametrize("encoding", ["uyvy", "yuyv"])
def test_colors_of_two_pixels_need_even_rows(encoding: str) -> None:
    into = camera()
    assert taken(into, message(np.zeros((6, 7, 2), np.uint8), encoding)) == [] and into.skipped == 1
    assert len(taken(into, message(np.zeros((6, 8, 2), np.uint8), encoding))) == 1


def test_damaged_jpegs_are_skipped() -> None:
    into, good = camera(), np.full((8, 8, 3), 90, np.uint8)
    jpeg = cv2.imencode(".jpg", good)[1].tobytes()
    for data, count in ((jpeg, 1), (jpeg[:20], 0), (b"", 0)):
        found = b"".join(encode(COMPRESSED_IMAGE, {"format": "jpeg", "data": data}))
        assert len(taken(into, found, COMPRESSED_IMAGE)) == count
    assert into.skipped == 2


def test_each_image_waits_for_its_depth() -> None:
    into = camera(depth=True)
    color, depth = np.zeros((6, 8, 3), np.uint8), np.full((3, 4), 1500, np.uint16)
    info = {"width": 16, "height": 12, "k": [8.0, 0, 4, 0, 8, 3, 0, 0, 1]}
    assert taken(into, b"".join(encode(CAMERA_INFO, info)), CAMERA_INFO, "info") == []
    assert taken(into, message(color, "bgr8", 10**12)) == []
    (image,) = taken(into, message(depth, "16UC1", 10**12 + 15 * MS), IMAGE, "depth")
    assert image.depth is not None and (image.depth.values == depth).all()
    assert image.depth.camera == (4.0, 4.0, 2.0, 1.5)  # of the image, half as wide as the CameraInfo
    # The depth of another time is not used, and shows that no better one comes.
    assert taken(into, message(color, "bgr8", 10**12 + 50 * MS)) == []
    (image,) = taken(into, message(depth, "16UC1", 10**12 + 90 * MS), IMAGE, "depth")
    assert image.depth is None and image.sender_ns == 10**12 + 50 * MS
    # Without any, it is waited for no longer than 50 ms, or until the next image.
    assert taken(into, message(color, "bgr8", 10**12 + 200 * MS), at_ns=0) == []
    (image,) = taken(into, message(color, "bgr8", 10**12 + 233 * MS), at_ns=33 * MS)
    assert image.sender_ns == 10**12 + 200 * MS and image.depth is None
    assert list(into.images(None, 60 * MS)) == []
    assert [one.sender_ns for one in into.images(None, 90 * MS)] == [10**12 + 233 * MS]


def test_depth_in_meters_and_of_big_endian_machines_is_read() -> None:
    for values, encoding, big in (
        (np.full((3, 4), 1.5, np.float32), "32FC1", 0),
        (np.full((3, 4), 1500, ">u2"), "16UC1", 1),
    ):
        into = camera(depth=True)
        taken(into, message(values, encoding, is_bigendian=big), IMAGE, "depth")
        (image,) = taken(into, message(np.zeros((6, 8, 3), np.uint8), "bgr8"))
        assert image.depth is not None and (image.depth.values == values).all()
        assert image.depth.values.dtype.isnative
    with pytest.raises(MismatchError, match="16UC1, mono16, 32FC1"):
        taken(camera(depth=True), message(np.zeros((6, 8, 3), np.uint8), "bgr8"), IMAGE, "depth")


def test_messages_that_overtook_each_other_are_skipped_and_a_jump_is_not() -> None:
    into, pixels = camera(), np.zeros((6, 8, 3), np.uint8)
    assert len(taken(into, message(pixels, "bgr8", 10**12))) == 1
    assert taken(into, message(pixels, "bgr8", 10**12 - 30 * MS)) == [] and into.skipped == 1
    assert len(taken(into, message(pixels, "bgr8", 10**11))) == 1
    into = camera(goes_back=False)
    assert len(taken(into, message(pixels, "bgr8", 10**12))) == 1
    with pytest.raises(DeviceError, match=r"jumped back by 900\.0 s"):
        taken(into, message(pixels, "bgr8", 10**11))


def frames() -> Iterator[Frame]:
    for format, shapes in (
        ("bgr", [(6, 8, 3)]),
        ("rgb", [(6, 8, 3)]),
        ("gray", [(6, 8)]),
        ("yuyv", [(6, 8, 2)]),
        ("nv12", [(6, 8), (3, 4, 2)]),
        ("i420", [(6, 8), (3, 4), (3, 4)]),
    ):
        planes = tuple(RNG.integers(0, 256, shape, np.uint8) for shape in shapes)
        yield Frame("cam", 0, 0, 0, 8, 6, format, planes, lend(planes, Counter()))  # type: ignore[arg-type]


def test_every_format_goes_out_and_comes_back() -> None:
    for frame in frames():
        pieces = image_message(frame, header(10**12, "mast"), Counter())
        (image,) = taken(camera(), b"".join(pieces))
        back = Frame("cam", 0, 0, 0, 8, 6, image.format, image.planes, image.lease)
        assert (bgr_from(back) == bgr_from(frame)).all()
        if frame.format in ("bgr", "rgb", "gray"):
            assert np.shares_memory(np.frombuffer(pieces[-1], np.uint8), frame.planes[0])


def test_cropped_pixels_are_copied_once() -> None:
    counter, wide = Counter(), RNG.integers(0, 256, (6, 10, 3), np.uint8)
    frame = Frame("cam", 0, 0, 0, 8, 6, "bgr", (wide[:, :8],), lend(wide, counter))
    fields = decode(IMAGE, b"".join(image_message(frame, {}, counter)))
    assert bytes(fields["data"]) == wide[:, :8].tobytes() and fields["step"] == 24
    assert counter.read().copies == 1


@pytest.mark.parametrize("ending", [".png", ".jpg"])
def test_a_small_file_of_a_huge_image_is_not_unpacked(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(cv2.imencode(ending, np.zeros((8, 8, 3), np.uint8))[1].tobytes())
    if ending == ".png":
        data[16:24] = struct.pack(">II", 30_000, 30_000)
    else:
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = struct.pack(">HH", 30_000, 30_000)
    monkeypatch.setattr(cv2, "imdecode", None)  # is never called
    into = camera()
    assert taken(into, b"".join(encode(COMPRESSED_IMAGE, {"format": "jpeg", "data": data})), COMPRESSED_IMAGE) == []
    assert into.skipped == 1


def test_what_is_called_jpeg_and_is_another_format_is_not_decoded() -> None:
    data, into = cv2.imencode(".bmp", np.zeros((8, 8, 3), np.uint8))[1].tobytes(), camera()
    assert taken(into, b"".join(encode(COMPRESSED_IMAGE, {"format": "jpeg", "data": data})), COMPRESSED_IMAGE) == []
    assert into.skipped == 1


def test_drawn_images_go_out_as_jpeg() -> None:
    fields = decode(COMPRESSED_IMAGE, b"".join(jpeg_message(np.full((8, 8, 3), 77, np.uint8), {})))
    assert fields["format"] == "jpeg"
    assert (cv2.imdecode(np.frombuffer(fields["data"], np.uint8), 1) == 77).all()


def test_stamps_before_the_epoch_and_after_2038_have_a_form() -> None:
    assert header(-5, "x") == {"header.stamp.sec": 0, "header.stamp.nanosec": 0, "header.frame_id": "x"}
    assert header(2**31 * 10**9 + 1, "")["header.stamp.sec"] == 0  # int32, as ROS has it
