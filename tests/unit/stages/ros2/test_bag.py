"""Bags of ROS 2 as sources, written by another implementation."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgert
from edgert.errors import ConfigError, StageError
from edgert.recording.cdr import encode
from edgert.recording.definitions import CAMERA_INFO, COMPRESSED_IMAGE, IMAGE
from edgert.stages.ros2.ros_images import header
from tests.helpers.ros_messages import typestore

pytest.importorskip("rosbags", reason="rosbags is not installed: pip install -e '.[ros-test]'")
BEGAN_NS = 1_700_000_000 * 10**9
COUNT = 40


def write(path: Path, storage: str = "SQLITE3", *, cameras: int = 1, depth: bool = False, **keys: Any) -> Path:
    """Write a bag of 20 frames a second with a CameraInfo and a topic of something else."""
    from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer

    began_ns = keys.get("began_ns", BEGAN_NS)
    store, names = typestore("jazzy"), [f"/cam{number}/image_raw" for number in range(cameras)]
    made = Writer(path, version=9, storage_plugin=StoragePlugin[storage])
    if keys.get("packed"):
        made.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
    with made as writer:
        images = [writer.add_connection(name, IMAGE, typestore=store) for name in names]
        far = writer.add_connection("/cam0/depth", IMAGE, typestore=store) if depth else None
        info = writer.add_connection("/cam0/camera_info", CAMERA_INFO, typestore=store)
        other = writer.add_connection("/scan", "std_msgs/msg/String", typestore=store)
        about = {"width": 8, "height": 6, "k": [10.0, 0, 4, 0, 10, 3, 0, 0, 1]}
        for number in range(COUNT):
            time_ns = began_ns + number * 50_000_000
            fields = header(time_ns, "mast")
            writer.write(info, time_ns, b"".join(encode(CAMERA_INFO, {**fields, **about})))
            pixels = {"height": 6, "width": 8, "encoding": "bgr8", "step": 24, "data": bytes([number] * 144)}
            for image in images:
                writer.write(image, time_ns + 1, b"".join(encode(IMAGE, {**fields, **pixels})))
            if far is not None:
                values = {"height": 6, "width": 8, "encoding": "16UC1", "step": 16}
                values["data"] = np.full(48, 1000 + number, np.uint16).tobytes()
                writer.write(far, time_ns + 2, b"".join(encode(IMAGE, {**fields, **values})))
            writer.write(other, time_ns + 3, b"\0\1\0\0\2\0\0\0a\0")
    return path


def results(source: str, **keys: Any) -> list[edgert.runtime.Frame]:
    stages = {"cam": {"source": source, **keys}, "out": {"sink": "null", "from": "cam"}}
    with edgert.Pipeline({"stages": stages}) as pipeline:
        return [one.frame for one in pipeline.results("cam", timeout=20)]


def test_a_bag_gives_every_image_with_its_stamp(tmp_path: Path) -> None:
    bag = write(tmp_path / "run")
    for source in (str(bag), f"bag:{bag}", f"bag:{bag}#/cam0/image_raw"):
        frames = results(source)
        assert [one.index for one in frames] == list(range(COUNT))
        assert [one.extra.sender_ns for one in frames] == [BEGAN_NS + number * 50_000_000 for number in range(COUNT)]
        assert [one.media_ns for one in frames] == [number * 50_000_000 for number in range(COUNT)]
    assert len(results(str(bag), fps=10)) == COUNT / 2
    assert len(results(str(bag), limit=3)) == 3


@pytest.mark.parametrize(("storage", "packed"), [("SQLITE3", False), ("MCAP", False), ("MCAP", True)])
def test_bags_are_read_whole_and_as_far_as_they_are(tmp_path: Path, storage: str, packed: bool) -> None:
    if is_mcap := storage == "MCAP":
        pytest.importorskip("mcap", reason="mcap is not installed: pip install -e '.[ros-test]'")
    bag = write(tmp_path / "run", storage, packed=packed)
    (file,) = bag.glob("*.mcap" if is_mcap else "*.db3")
    for source in (str(bag), f"bag:{file}#/cam0/image_raw"):
        assert [one.media_ns for one in results(source)] == [number * 50_000_000 for number in range(COUNT)]
    data, rng = file.read_bytes(), random.Random(3)
    pages = [int(len(data) * part) // 4096 * 4096 for part in (0.6, 0.8)]
    for length in [rng.randrange(len(data)) for _ in range(12)] if is_mcap else pages:
        file.write_bytes(data[:length])
        source, count = f"bag:{file}#/cam0/image_raw", 0
        what = {"stages": {"cam": {"source": source}, "out": {"sink": "null", "from": "cam"}}}
        why = "cut off|not a bag|gave no image|no topic" if is_mcap else "cut off|not a bag"
        with pytest.raises(StageError, match=why) as caught, edgert.Pipeline(what) as made:
            for _ in made.results("cam", timeout=20):
                count += 1
        assert f"{count} images" in str(caught.value) or not count


def test_depth_belongs_to_its_image(tmp_path: Path) -> None:
    bag, distances = write(tmp_path / "run", depth=True), list[tuple[int, int]]()
    stages = {"cam": {"source": str(bag), "options": {"depth": "/cam0/depth"}}, "out": {"sink": "null", "from": "cam"}}
    with edgert.Pipeline({"stages": stages}) as pipeline:
        for one in pipeline.results("cam", timeout=20):
            depth = one.frame.extra.depth
            assert depth is not None and depth.camera == (10.0, 10.0, 4.0, 3.0)
            distances.append((int(one.frame.planes[0][0, 0, 0]), int(depth.values[0, 0])))
    assert distances == [(number, 1000 + number) for number in range(COUNT)]


def test_topics_that_cannot_be_name_those_that_can(tmp_path: Path) -> None:
    bag = write(tmp_path / "run", cameras=2, depth=True)
    with pytest.raises(StageError, match="3 topics with images") as caught:
        results(str(bag))
    assert "/cam0/depth, /cam0/image_raw, /cam1/image_raw" in str(caught.value)
    with pytest.raises(StageError, match="no topic /cam2/image_raw; did you mean '/cam"):
        results(f"bag:{bag}#/cam2/image_raw")
    with pytest.raises(StageError, match=r"/scan of .* is of type std_msgs/msg/String") as caught:
        results(f"bag:{bag}#/scan")
    assert "of that type there: /cam0/depth, /cam0/image_raw" in str(caught.value)
    with pytest.raises(ConfigError, match=r"options\.depth:"):
        results(f"bag:{bag}#/cam0/image_raw", options={"depth": "/2d/x y"})
    with pytest.raises(ConfigError, match="unknown key 'dept'; did you mean 'depth'"):
        results(f"bag:{bag}#/cam0/image_raw", options={"dept": "/cam0/depth"})


def test_other_files_and_damaged_ones_are_named(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"no bag at .*nothing"):
        results(f"bag:{tmp_path}/nothing")
    (tmp_path / "other.db3").write_bytes(b"no database" * 100)
    with pytest.raises(StageError, match=r"other\.db3 is not a bag of ROS 2"):
        results(str(tmp_path / "other.db3"))
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "run_0.db3.zstd").write_bytes(b"")
    with pytest.raises(StageError, match="is a compressed file") as caught:
        results(f"bag:{tmp_path}/packed")
    assert "zstd -d" in str(caught.value)


def test_several_files_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    for number, name in ((0, "run_2"), (1, "run_10")):
        one = write(tmp_path / name, began_ns=BEGAN_NS + number * COUNT * 50_000_000)
        (file,) = one.glob("*.db3")
        shutil.copy(file, tmp_path / "all" / f"{name}.db3")
    frames = results(f"bag:{tmp_path}/all#/cam0/image_raw")
    assert [one.media_ns for one in frames] == [number * 50_000_000 for number in range(2 * COUNT)]


def test_a_bag_of_compressed_images(tmp_path: Path) -> None:
    import cv2
    from rosbags.rosbag2 import StoragePlugin, Writer

    jpeg = cv2.imencode(".jpg", np.full((6, 8, 3), 90, np.uint8))[1].tobytes()
    with Writer(tmp_path / "run", version=9, storage_plugin=StoragePlugin.SQLITE3) as writer:
        images = writer.add_connection("/cam/image/compressed", COMPRESSED_IMAGE, typestore=typestore("humble"))
        message = {**header(BEGAN_NS, "mast"), "format": "jpeg", "data": jpeg}
        writer.write(images, BEGAN_NS, b"".join(encode(COMPRESSED_IMAGE, message)))
    (frame,) = results(str(tmp_path / "run"))
    assert (frame.width, frame.height, frame.format) == (8, 6, "bgr")
