"""ROS 2 by real rclpy: topics in, topics out, clocks, and what cannot fit."""

import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import pytest

import edgert
from edgert.errors import DeviceError
from edgert.runtime import Result
from edgert.runtime.records import Classification, Detections
from edgert.stages.ros2.ros_link import Quality
from tests.helpers.ros_partner import Partner, image, needs_rclpy, partner, repeated
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
BEST_EFFORT, RELIABLE = Quality(False), Quality(True, depth=10)
TOPIC = "/camera/image_raw"
SOURCE = {"source": f"ros2://{TOPIC}"}
HERE = "tests.integration.test_ros2_rclpy"


@pytest.fixture
def ros() -> Iterator[Partner]:
    needs_rclpy()
    with partner() as made:
        yield made


def look(result: Result) -> Result:
    boxes = np.array([[8, 4, 24, 20], [30, 10, 50, 40]], np.float32)
    scores, classes = np.array([0.75, 0.5], np.float32), np.array([1, 0], np.int32)
    ids = np.array([7, 9], np.int64)
    found = Detections(boxes, scores, classes, ("cat", "dog"), ids)
    best = Classification(np.array([0.875, 0.125], np.float32), np.array([1, 0], np.int32), ("day", "night"))
    return result.with_output("look", found).with_output("scene", best)


def pipeline(**keys: Any) -> dict[str, Any]:
    look, sink = {"python": f"{HERE}:look", "from": "cam"}, {"sink": "ros2", "from": "look", **keys}
    return {"name": "dock", "stages": {"cam": SOURCE, "look": look, "out": sink}}


def test_images_come_with_their_stamps_and_without_a_copy(ros: Partner) -> None:
    from sensor_msgs.msg import Image

    publisher = ros.publisher(TOPIC, Image, BEST_EFFORT)
    stages = {"cam": {**SOURCE, "limit": 5}, "out": {"sink": "null", "from": "cam"}}
    with repeated(lambda number: publisher.publish(image(number))), edgert.Pipeline({"stages": stages}) as made:
        for result in made.results("cam", timeout=20):
            frame = result.frame
            number = int(frame.planes[0][0, 0, 0])
            assert (frame.planes[0] == number).all() and frame.format == "bgr"
            assert frame.extra.sender_ns == 1000 * 10**9 + number * 50_000_000
        assert made.summary().memory.copies_per_frame == 0


def test_compressed_images_are_decoded(ros: Partner) -> None:
    from sensor_msgs.msg import CompressedImage

    publisher = ros.publisher(f"{TOPIC}/compressed", CompressedImage, BEST_EFFORT)
    message = CompressedImage(format="bgr8; jpeg compressed bgr8")
    message.data = cv2.imencode(".jpg", np.full((48, 64, 3), 90, np.uint8))[1].tobytes()
    stages = {"cam": {"source": f"ros2://{TOPIC}/compressed", "limit": 1}, "out": {"sink": "null", "from": "cam"}}
    with repeated(lambda number: publisher.publish(message)), edgert.Pipeline({"stages": stages}) as made:
        (result,) = made.results("cam", timeout=20)
        assert (result.frame.width, result.frame.height, int(result.frame.planes[0][5, 5, 1])) == (64, 48, 90)


def test_results_are_heard_field_by_field(ros: Partner) -> None:
    from diagnostic_msgs.msg import DiagnosticArray
    from sensor_msgs.msg import CompressedImage, Image
    from vision_msgs.msg import Classification as ClassificationMessage, Detection2DArray, VisionInfo

    publisher = ros.publisher(TOPIC, Image, BEST_EFFORT)
    ros.listen("/dock/cam/detections", Detection2DArray, RELIABLE)
    ros.listen("/dock/cam/classification", ClassificationMessage, RELIABLE)
    ros.listen("/dock/cam/image/compressed", CompressedImage, BEST_EFFORT)
    ros.listen("/diagnostics", DiagnosticArray, RELIABLE)
    with repeated(lambda number: publisher.publish(image(number))), edgert.Pipeline(pipeline(image="jpeg")) as made:
        made.start()
        wait_until(lambda: len(ros.heard["/dock/cam/detections"]) > 3 and ros.heard["/diagnostics"])
        wait_until(lambda: ros.heard["/dock/cam/image/compressed"] and ros.heard["/dock/cam/classification"])
        ros.listen("/dock/cam/vision_info", VisionInfo, Quality(True, latched=True))  # later than it was published
        wait_until(lambda: ros.heard["/dock/cam/vision_info"])
        wait_until(lambda: any(one.status[0].level == b"\0" for one in ros.heard["/diagnostics"]))
    message = ros.heard["/dock/cam/detections"][-1]
    assert message.header.frame_id == "camera_optical" and message.header.stamp.sec >= 1000
    assert message.header.stamp.nanosec % 50_000_000 == 0
    first, second = message.detections
    assert (first.bbox.center.position.x, first.bbox.center.position.y) == (16.0, 12.0)
    assert (first.bbox.size_x, first.bbox.size_y, first.bbox.center.theta) == (16.0, 16.0, 0.0)
    assert (first.id, second.id) == ("7", "9") and first.header == message.header
    assert (first.results[0].hypothesis.class_id, first.results[0].hypothesis.score) == ("dog", 0.75)
    assert first.results[0].pose.pose.orientation.w == 1.0 and not first.results[0].pose.covariance.any()
    best = ros.heard["/dock/cam/classification"][-1]
    assert [(one.class_id, one.score) for one in best.results] == [("night", 0.875), ("day", 0.125)]
    names = ros.heard["/dock/cam/vision_info"][-1]
    assert names.method == "dock" and json.loads(names.database_location) in (["cat", "dog"], ["day", "night"])
    sent = ros.heard["/dock/cam/image/compressed"][-1]
    assert sent.format == "jpeg" and cv2.imdecode(np.frombuffer(sent.data, np.uint8), 1).shape == (48, 64, 3)
    state = next(one for one in ros.heard["/diagnostics"] if one.status[0].level == b"\0")
    assert [one.name for one in state.status] == ["edgert: dock", "edgert: dock: cam"]
    assert state.status[1].message == "running" and {one.key for one in state.status[0].values} >= {"fps", "dropped"}


def test_images_go_out_as_they_came(ros: Partner) -> None:
    from sensor_msgs.msg import Image

    publisher = ros.publisher(TOPIC, Image, BEST_EFFORT)
    ros.listen("/out/cam/image", Image, BEST_EFFORT)
    file = pipeline(image="raw", namespace="/out/{stream}", frame_id="mast")
    with repeated(lambda number: publisher.publish(image(number))), edgert.Pipeline(file) as made:
        made.start()
        wait_until(lambda: len(ros.heard["/out/cam/image"]) > 2)
        assert made.summary().memory.copies_per_frame <= 1
    heard = ros.heard["/out/cam/image"][-1]
    assert (heard.width, heard.height, heard.encoding, heard.step) == (64, 48, "bgr8", 192)
    assert heard.header.frame_id == "mast" and len(set(heard.data)) == 1


def test_depth_gives_each_box_its_position(ros: Partner) -> None:
    from sensor_msgs.msg import CameraInfo, Image
    from vision_msgs.msg import Detection2DArray

    color, depth = (ros.publisher(topic, Image, BEST_EFFORT) for topic in (TOPIC, "/camera/depth"))
    info = ros.publisher("/camera/camera_info", CameraInfo, BEST_EFFORT)
    camera = CameraInfo(width=64, height=48, k=[50.0, 0.0, 32.0, 0.0, 50.0, 24.0, 0.0, 0.0, 1.0])
    ros.listen("/dock/cam/detections", Detection2DArray, RELIABLE)

    def publish(number: int) -> None:
        info.publish(camera)
        distances = image(number, encoding="16UC1", channels=2)
        distances.data = np.full(48 * 64, 2000, np.uint16).tobytes()
        color.publish(image(number))
        depth.publish(distances)  # behind the image that it belongs to

    file = pipeline()
    file["stages"]["cam"] = {**SOURCE, "options": {"depth": "/camera/depth"}}
    file["stages"]["near"] = {"stage": "distance", "from": "look"}
    file["stages"]["out"]["from"] = "near"
    with repeated(publish), edgert.Pipeline(file) as made:
        made.start()
        wait_until(lambda: len(ros.heard["/dock/cam/detections"]) > 5)
    where = ros.heard["/dock/cam/detections"][-1].detections[0].results[0].pose.pose.position
    assert (where.x, where.y, where.z) == pytest.approx((-16 / 50 * 2, -12 / 50 * 2, 2.0), abs=1e-5)


def test_simulated_time_is_obeyed(ros: Partner) -> None:
    from rosgraph_msgs.msg import Clock
    from vision_msgs.msg import Detection2DArray

    clock = ros.publisher("/clock", Clock, RELIABLE)
    ros.listen("/dock/cam/detections", Detection2DArray, RELIABLE)

    def tick(number: int) -> None:
        message = Clock()
        message.clock.sec = 5000 + number // 20
        clock.publish(message)

    file = pipeline(use_sim_time=True)
    file["stages"]["cam"] = {"source": "synthetic:blank", "size": "64x48", "fps": 20, "realtime": True}
    with repeated(tick), edgert.Pipeline(file) as made:
        made.start()
        wait_until(lambda: any(one.header.stamp.sec >= 5001 for one in ros.heard["/dock/cam/detections"]))
    assert {one.header.stamp.sec for one in ros.heard["/dock/cam/detections"]} <= {0, *range(4999, 5400)}


def test_a_clock_that_jumps_back_is_named(ros: Partner, caplog: pytest.LogCaptureFixture) -> None:
    from sensor_msgs.msg import Image

    publisher = ros.publisher(TOPIC, Image, BEST_EFFORT)
    frames = list[edgert.runtime.Frame]()
    file: Any = {"stages": {"cam": SOURCE, "out": {"sink": "callback", "from": "cam"}}}
    jump = repeated(lambda number: publisher.publish(image(number + (400 if number < 20 else 0))))
    callbacks = {"out": lambda result: frames.append(result.frame)}
    with caplog.at_level(logging.WARNING), jump, edgert.Pipeline(file, callbacks=callbacks) as made:
        made.start()
        wait_until(lambda: "jumped back" in caplog.text and len(frames) > 25)
    places = [one.media_ns for one in frames]
    assert places == sorted(places) and "the clock of topic /camera/image_raw jumped back by 19" in caplog.text
    file["stages"]["cam"] = {**SOURCE, "reconnect": False, "start": "wait"}
    jump = repeated(lambda number: publisher.publish(image(number + (400 if number < 60 else 0))))
    with jump, pytest.raises(DeviceError, match="jumped back by"):
        edgert.Pipeline(file, callbacks={"out": lambda result: None}).run()


def test_a_topic_of_another_type_or_encoding_is_named(ros: Partner) -> None:
    from diagnostic_msgs.msg import DiagnosticArray
    from sensor_msgs.msg import Image

    ros.publisher("/scan", DiagnosticArray, RELIABLE)
    depth = ros.publisher("/camera/depth", Image, BEST_EFFORT)
    stages = {"cam": {"source": "ros2:///scan"}, "out": {"sink": "null", "from": "cam"}}
    with pytest.raises(DeviceError, match="diagnostic_msgs/msg/DiagnosticArray") as caught:
        edgert.Pipeline({"stages": stages}).run()
    assert "sensor_msgs/msg/Image or sensor_msgs/msg/CompressedImage" in str(caught.value)
    assert "/camera/depth" in str(caught.value)
    stages["cam"]["source"] = "ros2:///camera/depth"
    message = image(1, encoding="16UC1", channels=2)
    with (
        repeated(lambda number: depth.publish(message)),
        pytest.raises(DeviceError, match="encoding '16UC1'") as caught,
    ):
        edgert.Pipeline({"stages": stages}).run()
    assert "bgr8" in str(caught.value) and "options: {depth: TOPIC}" in str(caught.value)


def test_quality_of_service_that_cannot_match_is_named(ros: Partner) -> None:
    from sensor_msgs.msg import Image

    publisher = ros.publisher(TOPIC, Image, BEST_EFFORT)
    stages = {"cam": {**SOURCE, "options": {"reliability": "reliable"}}, "out": {"sink": "null", "from": "cam"}}
    again = repeated(lambda number: publisher.publish(image(number)))
    with again, pytest.raises(DeviceError, match="cannot be received") as caught:
        edgert.Pipeline({"stages": stages}).run()
    assert "reliability" in str(caught.value) and "best_effort" in str(caught.value)


def test_a_subscriber_that_cannot_match_is_logged(ros: Partner, caplog: pytest.LogCaptureFixture) -> None:
    from sensor_msgs.msg import Image
    from vision_msgs.msg import Detection2DArray

    publisher = ros.publisher(TOPIC, Image, BEST_EFFORT)
    ros.listen("/dock/cam/detections", Detection2DArray, Quality(True, latched=True))
    again = repeated(lambda number: publisher.publish(image(number)))
    with again, caplog.at_level(logging.ERROR), edgert.Pipeline(pipeline()) as made:
        made.start()
        wait_until(lambda: "a subscriber of /dock/cam/detections gets nothing: its durability" in caplog.text)
        assert made.running


def test_a_topic_that_appears_later_is_joined(ros: Partner) -> None:
    from sensor_msgs.msg import Image

    stages = {"cam": SOURCE, "out": {"sink": "null", "from": "cam"}}
    with edgert.Pipeline({"stages": stages}) as made:
        made.start()
        wait_until(lambda: "nobody publishes it" in made.state()["stages"]["cam"]["source"]["reason"])
        publisher = ros.publisher(TOPIC, Image, BEST_EFFORT)
        with repeated(lambda number: publisher.publish(image(number))):
            assert made.latest("cam", timeout=20).frame.width == 64


def test_stamps_become_ages_by_the_time_of_ros(ros: Partner) -> None:
    from sensor_msgs.msg import Image

    publisher = ros.publisher(TOPIC, Image, BEST_EFFORT)

    def publish(number: int) -> None:
        message = image(number)
        stamp_ns = time.time_ns() - 300_000_000  # taken 0.3 s ago
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp_ns, 10**9)
        publisher.publish(message)

    stages = {"cam": {**SOURCE, "limit": 3}, "out": {"sink": "null", "from": "cam"}}
    with repeated(publish), edgert.Pipeline({"stages": stages}) as made:
        for result in made.results("cam", timeout=20):
            assert (time.monotonic_ns() - result.timestamp_ns) / 1e9 == pytest.approx(0.3, abs=0.25)
