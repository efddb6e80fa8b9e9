"""A node of real rclpy that publishes and hears what a robot's other nodes would, in this process or in its own."""

import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from edgert.recording.cdr import encode
from edgert.recording.definitions import IMAGE
from edgert.stages.ros2.ros_images import header
from edgert.stages.ros2.ros_link import Quality


def needs_rclpy() -> None:
    """Skip without rclpy and vision_msgs; keep the network on this machine, in a domain of this process."""
    reason = "rclpy is not installed: pip install -e '.[ros-test]' with CPython 3.12 or 3.10 on x86-64"
    pytest.importorskip("rclpy", reason=reason)
    pytest.importorskip("vision_msgs", reason="vision_msgs is not built: python -m tests.helpers.vision_msgs")
    isolate(os.getpid() % 100 + 1)


def isolate(domain: int) -> None:
    os.environ |= {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", "ROS_DOMAIN_ID": str(domain)}


class Partner:
    def __init__(self, name: str = "partner") -> None:
        import rclpy
        from rclpy.context import Context
        from rclpy.executors import SingleThreadedExecutor
        from rclpy.node import Node

        self._context = Context()
        rclpy.init(args=[], context=self._context)
        self.node = Node(name, context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._executor.spin, daemon=True)
        self._thread.start()
        self.heard: dict[str, list[Any]] = defaultdict(list)

    def publisher(self, topic: str, kind: Any, quality: Quality) -> Any:
        from edgert.stages.ros2.rclpy_node import _qos_profile

        return self.node.create_publisher(kind, topic, _qos_profile(quality))

    def listen(self, topic: str, kind: Any, quality: Quality) -> None:
        from edgert.stages.ros2.rclpy_node import _qos_profile

        self.node.create_subscription(kind, topic, self.heard[topic].append, _qos_profile(quality))

    def close(self) -> None:
        self._executor.shutdown()
        self._thread.join(5)
        self.node.destroy_node()
        self._context.try_shutdown()


@contextmanager
def partner() -> Iterator[Partner]:
    made = Partner()
    try:
        yield made
    finally:
        made.close()


@contextmanager
def repeated(publish: Any, every_s: float = 0.05) -> Iterator[None]:
    """Call a function with 0, 1, 2 … from a thread until the block ends."""
    done = threading.Event()

    def work() -> None:
        number = 0
        while not done.wait(every_s):
            publish(number)
            number += 1

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(5)


def image(number: int, size: tuple[int, int] = (64, 48), encoding: str = "bgr8", channels: int = 3) -> Any:
    """Return an Image whose pixels and stamp have its number."""
    from sensor_msgs.msg import Image

    width, height = size
    made = Image(height=height, width=width, encoding=encoding, step=width * channels)
    made.header.frame_id = "camera_optical"
    made.header.stamp.sec, made.header.stamp.nanosec = 1000 + number // 20, number % 20 * 50_000_000
    made.data = np.full(height * made.step, number % 256, np.uint8).tobytes()
    return made


def main() -> None:
    """Publish images of a size until the input ends: python -m tests.helpers.ros_partner TOPIC WIDTHxHEIGHT SECONDS."""
    from sensor_msgs.msg import Image

    topic, size, every = sys.argv[1:4]
    width, height = map(int, size.split("x"))
    fields = {"height": height, "width": width, "encoding": "bgr8", "step": 3 * width}
    pixels = np.random.default_rng(0).integers(0, 256, height * width * 3, np.uint8).data
    with partner() as node:
        publisher = node.publisher(topic, Image, Quality(False))

        def publish(number: int) -> None:
            stamped = header(node.node.get_clock().now().nanoseconds, "camera")
            publisher.publish(b"".join(encode(IMAGE, {**stamped, **fields, "data": pixels})))

        with repeated(publish, float(every)):
            sys.stdin.read()


if __name__ == "__main__":
    main()
