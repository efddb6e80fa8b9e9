"""Processor time of 1080p images in and out over ROS 2, with real rclpy.

    python tests/bench/bench_ros2.py [--json FILE]      # CPython 3.12 or 3.10 with the extra ros-test

In: another process publishes 1080p BGR images at 30 per second; boxes are found (known ones), and published. Counted is
this process, against the same with images from memory and without a publication. Out: the time of one image message of
1080p, from its pixels to rclpy's return, and the copies that edgert makes.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

import edgert
from edgert.benchmark.measure import Figure
from edgert.memory import Counter
from edgert.recording.definitions import IMAGE
from edgert.stages.ros2.rclpy_node import shared_node
from edgert.stages.ros2.ros_images import header, image_message
from edgert.stages.ros2.ros_link import Quality
from tests.bench.report import main
from tests.helpers.ros_partner import isolate

SIZE, HZ = "1920x1080", 30.0
WARM, COUNT, ROUNDS = 20, 100, 3
MORE_MS, OUT_MS = 1.5, 2.0
LOOK = {"python": "tests.integration.test_ros2_rclpy:look", "from": "cam"}
TOPIC = "/bench/image_raw"


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def per_frame_ms(stages: Mapping[str, Any]) -> float:
    with edgert.Pipeline({"name": "bench", "stages": dict(stages)}) as pipeline:
        begun, count = 0.0, 0
        for count, _ in enumerate(pipeline.results("look", timeout=30)):
            if count == WARM:
                begun = cpu_s()
            if count == WARM + COUNT:
                return (cpu_s() - begun) / COUNT * 1e3
    raise SystemExit(f"the pipeline ended after {count} frames")


def into() -> Iterator[Figure]:
    isolate(97)
    command = (sys.executable, "-m", "tests.helpers.ros_partner", TOPIC, SIZE, str(1 / HZ))
    topic = {"cam": {"source": f"ros2://{TOPIC}"}, "look": LOOK, "out": {"sink": "ros2", "from": "look"}}
    memory = {"source": "synthetic:noise", "size": SIZE, "fps": HZ, "realtime": True}
    same = {"cam": memory, "look": LOOK, "out": {"sink": "null", "from": "look"}}
    received = {**topic, "out": {"sink": "null", "from": "look"}}
    rows = []
    for _ in range(ROUNDS):
        rest = per_frame_ms(same)
        with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2]) as publisher:
            rows.append((rest, alone_ms(), per_frame_ms(received), per_frame_ms(topic)))
            assert publisher.stdin is not None
            publisher.stdin.close()
    rest, alone, less, full = (statistics.median(column) for column in zip(*rows, strict=True))
    detail = {"from memory": rest, "received": less, "received and published": full, "rclpy alone": alone}
    yield Figure("1080p in, boxes out: CPU more than from memory", full - rest, "ms", MORE_MS, n=ROUNDS, detail=detail)
    yield Figure("more than rclpy alone takes to receive it", full - rest - alone, "ms", MORE_MS, n=ROUNDS)


def alone_ms() -> float:
    """Return the processor time of a message for a program that only takes it from rclpy, serialized as edgert does."""
    node, times = shared_node("alone", False, "bench"), list[float]()
    subscription = node.subscribe(TOPIC, IMAGE, Quality(False), lambda data, lost: times.append(cpu_s()))
    while len(times) <= WARM + COUNT:
        time.sleep(0.1)
    subscription.close()
    node.close()
    return (times[WARM + COUNT] - times[WARM]) / COUNT * 1e3


def out() -> Iterator[Figure]:
    isolate(98)
    node, counter = shared_node("bench", False, "bench"), Counter()
    publisher = node.publisher("/bench/out", IMAGE, Quality(False))
    pixels = np.random.default_rng(0).integers(0, 256, (1080, 1920, 3), np.uint8)
    used, passed = list[float](), list[float]()
    for _ in range(WARM + COUNT):
        began, spent = time.perf_counter(), time.thread_time()
        publisher.publish(image_message(pixels, header(10**18, "camera"), counter))
        used.append((time.thread_time() - spent) * 1e3)
        passed.append((time.perf_counter() - began) * 1e3)
        time.sleep(1 / HZ)
    publisher.close()
    node.close()
    detail = {"by the clock": statistics.median(passed[WARM:])}
    yield Figure("1080p image out, CPU", statistics.median(used[WARM:]), "ms", OUT_MS, n=COUNT, detail=detail)
    # One more than the counter has: the pieces are joined for rclpy, which takes bytes.
    copies = counter.read().copies + 1
    yield Figure("copies of an image out", copies, "copies", 1.0, is_exact=True)


def measure() -> Iterator[Figure]:
    yield from out()
    yield from into()


# By default Fast DDS has 512 KiB of shared memory, and most images of 6 MB are lost on their way over UDP.
_PROFILE = """<profiles xmlns="http://www.eprosima.com/XMLSchemas/fastRTPS_Profiles">
  <transport_descriptors><transport_descriptor>
    <transport_id>large</transport_id><type>SHM</type>
    <segment_size>67108864</segment_size><maxMessageSize>16777216</maxMessageSize>
  </transport_descriptor></transport_descriptors>
  <participant profile_name="large" is_default_profile="true"><rtps>
    <userTransports><transport_id>large</transport_id></userTransports>
    <useBuiltinTransports>false</useBuiltinTransports>
  </rtps></participant>
</profiles>
"""

if __name__ == "__main__":
    with tempfile.NamedTemporaryFile("w", suffix=".xml") as profile:
        profile.write(_PROFILE)
        profile.flush()
        os.environ |= dict.fromkeys(("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE"), profile.name)
        main("ROS 2: images in and out", measure)
