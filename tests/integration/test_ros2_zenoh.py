"""ROS 2 over Zenoh, against a peer that is written on rosbags and Zenoh alone, in another process."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

import edgert
from edgert.errors import ConfigError, DeviceError
from edgert.stages.ros2 import zenoh_session
from edgert.stages.ros2.ros_link import Link
from tests.helpers.ros_messages import as_object, typestore
from tests.helpers.waiting import wait_until
from tests.helpers.zenoh_echo import router

pytest.importorskip("zenoh", reason="eclipse-zenoh is not installed: pip install -e '.[ros-test]'")
pytest.importorskip("rosbags", reason="rosbags is not installed: pip install -e '.[ros-test]'")
pytestmark = pytest.mark.timeout(120)
PORT = 27447
ADDRESS = f"ros2+zenoh://127.0.0.1:{PORT}"
HASH = "RIHS01_d31d41a9a4c4bc8eae9be757b0beed306564f7526c88ea6a4588fb9582527d47"
IMAGE_KEY = "cam/image/sensor_msgs::msg::dds_::Image_"
COUNT = 1000


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("ROS_DOMAIN_ID", "5")
    session = router(PORT)
    yield session
    session.close()


def attachment(number: int, *, named: bool = False) -> bytes:
    gid = bytes(range(16))
    if not named:
        return struct.pack("<qqB", number, time.time_ns(), 16) + gid
    parts = (b"sequence_number", struct.pack("<q", number)), (b"source_timestamp", struct.pack("<q", 1))
    return b"".join(bytes([len(name)]) + name + value for name, value in (*parts, (b"source_gid", b"\x10" + gid)))


def image(store: Any, number: int, size: int = 8) -> bytes:
    fields: dict[str, Any] = {"header.stamp.sec": 100 + number // 20, "header.stamp.nanosec": number % 20 * 50_000_000}
    fields |= {"header.frame_id": "mast", "height": size, "width": size, "encoding": "bgr8", "is_bigendian": 0}
    fields |= {"step": 3 * size, "data": bytes([number % 256] * (3 * size * size))}
    return bytes(store.serialize_cdr(as_object("sensor_msgs/msg/Image", fields, store), "sensor_msgs/msg/Image"))


def test_a_thousand_messages_go_each_way_between_two_processes(peer: Any) -> None:
    from zenoh import CongestionControl

    store, heard = typestore("jazzy"), list[tuple[str, Any, bytes]]()
    key = "5/echo/detections/vision_msgs::msg::dds_::Detection2DArray_"

    def note(sample: Any) -> None:
        message = store.deserialize_cdr(bytes(sample.payload), "vision_msgs/msg/Detection2DArray")
        heard.append((str(sample.key_expr), message, bytes(sample.attachment)))

    subscriber = peer.declare_subscriber(f"{key}/*", note)
    command = (sys.executable, "-m", "tests.helpers.zenoh_echo", ADDRESS)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as echo:
        assert echo.stdout is not None and echo.stdin is not None
        assert echo.stdout.readline() == b"ready\n"
        block = {"congestion_control": CongestionControl.BLOCK, "encoding": "application/cdr"}
        images = peer.declare_publisher(f"5/{IMAGE_KEY}/{HASH}", **block)
        of_humble = "5/cam/jpeg/sensor_msgs::msg::dds_::CompressedImage_/TypeHashNotSupported"
        jpeg = peer.declare_publisher(of_humble, **block)
        fields: dict[str, Any] = {"header.frame_id": "x", "header.stamp.sec": 1, "header.stamp.nanosec": 2}
        fields |= {"format": "jpeg", "data": b"abcd"}
        name = "sensor_msgs/msg/CompressedImage"
        compressed = bytes(store.serialize_cdr(as_object(name, fields, store), name))
        for number in range(COUNT):
            images.put(image(store, number), attachment=attachment(number + 1, named=number % 2 == 1))
            jpeg.put(compressed, attachment=attachment(number + 1))
        wait_until(lambda: len(heard) == 2 * COUNT, 60)
        tokens = [str(one.ok.key_expr) for one in peer.liveliness().get("@ros2_lv/5/**", timeout=2.0)]
        echo.stdin.close()
    of_images = [one for one in heard if one[1].detections[0].id == "8"]
    assert len(of_images) == COUNT and len(heard) == 2 * COUNT
    for number, (_, message, _) in enumerate(of_images):  # in order, each with its own header and pixels
        assert message.header.stamp.sec == 100 + number // 20 and message.header.frame_id == "mast"
        pixels = f"{number % 256:02x}" * 4
        assert message.detections[0].results[0].hypothesis.class_id == f"sensor_msgs/msg/Image:{pixels}"
    for number, (where, _, data) in enumerate(heard):
        assert where == f"{key}/{store.hash_rihs01('vision_msgs/msg/Detection2DArray')}"
        sequence, time_ns, length = struct.unpack_from("<qqB", data)
        assert (sequence, length, len(data)) == (number + 1, 16, 33) and abs(time_ns - time.time_ns()) < 600e9
    assert len({data[17:] for *_, data in heard}) == 1
    kinds = sorted(one.split("/")[5] for one in tokens)
    assert kinds == ["MP", "MS", "MS", "NN"]
    end = f"/MS/%/%/edgert_echo/%cam%image/sensor_msgs::msg::dds_::Image_/{HASH}/::,10:,:,:,,"
    assert any(one.endswith(end) for one in tokens)
    subscriber.undeclare()


def test_a_pipeline_without_ros(peer: Any, caplog: pytest.LogCaptureFixture) -> None:
    store, heard = typestore("humble"), list[Any]()
    kind = "vision_msgs/msg/Detection2DArray"
    note = lambda sample: heard.append(store.deserialize_cdr(bytes(sample.payload), kind))  # noqa: E731
    _subscriber = peer.declare_subscriber("5/dock/cam/detections/*/*", note)
    rest = f"%cam%image/sensor_msgs::msg::dds_::Image_/{HASH}/2::,1:,:,:,,"
    token = f"@ros2_lv/5/{peer.info.zid()}/0/1/MP/%/%/camera/{rest}"
    _held = peer.liveliness().declare_token(token)
    look = {"python": "tests.integration.test_ros2_rclpy:look", "from": "cam"}
    stages = {"cam": {"source": f"{ADDRESS}/cam/image"}, "look": look}
    stages["out"] = {"sink": "ros2", "from": "look", "zenoh": ADDRESS}
    publisher = peer.declare_publisher(f"5/{IMAGE_KEY}/{HASH}")
    frames, number = list[Any](), 0
    callbacks = {"look": lambda one: frames.append(one.frame)}
    with edgert.Pipeline({"name": "dock", "stages": stages}, callbacks=callbacks) as made:
        made.start()
        until = time.monotonic() + 30
        while len(heard) < 5 and time.monotonic() < until:
            publisher.put(image(store, number), attachment=attachment(number + 1))
            number += 2  # every second message is lost on the way
            time.sleep(0.02)
        assert "/dock/cam/detections" in Link.shared["dock", f"tcp/127.0.0.1:{PORT}", 5].topics()
        peer.close()
        wait_until(lambda: "stages.out: no Zenoh router" in caplog.text)
        again = router(PORT)
        wait_until(lambda: "messages reach subscribers again" in caplog.text)
        assert {"send.failed", "send.recovered"} <= {getattr(one, "code", "") for one in caplog.records}
    again.close()
    assert heard[-1].header.frame_id == "mast" and heard[-1].detections[0].results[0].hypothesis.class_id == "dog"
    assert frames[-1].index >= 2 * (len(frames) - 1)  # gaps are lost messages


def test_what_cannot_work_is_named(peer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(source: str, **keys: Any) -> None:
        stages = {"cam": {"source": source, **keys}, "out": {"sink": "null", "from": "cam"}}
        edgert.Pipeline({"stages": stages}).run()

    with pytest.raises(DeviceError, match=r"no Zenoh router at tcp/127\.0\.0\.1:1") as caught:
        run("ros2+zenoh://127.0.0.1:1/cam/image", start="fail")
    assert "rmw_zenohd" in str(caught.value)
    with pytest.raises(DeviceError, match="nobody publishes it"):
        run(f"{ADDRESS}/cam/nothing", start="fail", reconnect=False)
    token = f"@ros2_lv/5/{peer.info.zid()}/0/1/MP/%/%/camera/%scan/sensor_msgs::msg::dds_::LaserScan_/x/::,1:,:,:,,"
    held = peer.liveliness().declare_token(token)
    with pytest.raises(DeviceError, match="topic /scan is of type sensor_msgs/msg/LaserScan"):
        run(f"{ADDRESS}/scan")
    held.undeclare()
    with pytest.raises(ConfigError, match="names no Zenoh router"):
        run("ros2+zenoh:///cam/image")
    monkeypatch.setenv("ROS_DOMAIN_ID", "zero")
    with pytest.raises(ConfigError, match="ROS_DOMAIN_ID=zero is not a domain"):
        run(f"{ADDRESS}/cam/image")
    monkeypatch.setattr(zenoh_session, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match="needs eclipse-zenoh") as caught:
        run(f"{ADDRESS}/cam/image")
    assert "zenoh" in (caught.value.fix or "")
