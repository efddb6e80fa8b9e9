"""Bags of ROS 2 in SQLite, written without ROS and without another package."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from edgert.recording.cdr import encode
from edgert.recording.definitions import CAMERA_INFO, IMAGE
from edgert.stages.ros2.ros_images import header

_TABLES = """
CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT NOT NULL, type TEXT NOT NULL, serialization_format TEXT NOT NULL,
  offered_qos_profiles TEXT NOT NULL);
CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER NOT NULL, timestamp INTEGER NOT NULL,
  data BLOB NOT NULL);
CREATE INDEX timestamp_idx ON messages (timestamp ASC);
"""


def write_bag(path: Path, topics: dict[str, str], messages: Sequence[tuple[str, int, bytes]]) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(_TABLES)
        rows = [(number, name, kind, "cdr", "") for number, (name, kind) in enumerate(topics.items())]
        database.executemany("INSERT INTO topics VALUES (?, ?, ?, ?, ?)", rows)
        numbers = {name: number for number, name in enumerate(topics)}
        found = [(numbers[topic], time_ns, data) for topic, time_ns, data in messages]
        database.executemany("INSERT INTO messages (topic_id, timestamp, data) VALUES (?, ?, ?)", found)
        database.commit()


def write_depth_bag(path: Path, images: Sequence[np.ndarray], began_ns: int = 10**18) -> None:
    """Write a bag of BGR images at 30 frames a second, with a wall 2 m away and a CameraInfo."""
    topics = {"/camera/color": IMAGE, "/camera/depth": IMAGE, "/camera/camera_info": CAMERA_INFO}
    messages = list[tuple[str, int, bytes]]()
    for number, image in enumerate(images):
        time_ns, (height, width) = began_ns + number * 33_333_333, image.shape[:2]
        about: dict[str, Any] = {**header(time_ns, "camera"), "height": height, "width": width}
        camera = {**about, "k": [width, 0.0, width / 2, 0.0, width, height / 2, 0.0, 0.0, 1.0]}
        color = {**about, "encoding": "bgr8", "step": 3 * width, "data": image.data}
        far = {**about, "encoding": "16UC1", "step": 2 * width}
        depth = {**far, "data": np.full((height, width), 2000, np.uint16).tobytes()}
        for topic, fields in (("/camera/camera_info", camera), ("/camera/depth", depth), ("/camera/color", color)):
            messages.append((topic, time_ns, b"".join(encode(topics[topic], fields))))
    write_bag(path, topics, messages)
