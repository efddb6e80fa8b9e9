"""Recorded runs, small enough to make in a test."""

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from edgert import Pipeline
from edgert.config.stages import SourceStage
from edgert.recording.mcap_file import Damage, McapWriter, Message, Topic, read_messages
from edgert.recording.mcap_messages import topic as topic_named
from edgert.runtime.frame import U8
from edgert.stages.context import Context
from edgert.stages.source.kinds import source_for
from tests.helpers.clips import h264_units, write_clip
from tests.helpers.command import ROOT

TINY = {"stage": "motion", "from": ["packets", "pixels"]}


def record_tiny(folder: Path, frames: int = 4) -> Path:
    """Record a run without a model: a video file and a source without packets, before a stage with a memory."""
    write_clip(folder / "clip.mp4", frames, size=(256, 32))
    stages: dict[str, Any] = {
        "packets": {"source": str(folder / "clip.mp4")},
        "pixels": {"source": "synthetic:noise", "size": "32x24", "limit": frames},
        "moves": TINY,
        "rec": {"sink": "mcap", "path": str(folder / "tiny.mcap"), "from": "moves"},
    }
    with Pipeline({"stages": stages}) as pipeline:
        pipeline.run()
    return folder / "tiny.mcap"


def messages_of(path: Path, *topics: str) -> list[Message]:
    return list(read_messages(path, Damage(), frozenset(topics)))


def rewritten(path: Path, out: Path, changes: Mapping[str, Callable[[bytes], bytes | None]]) -> Path:
    """Write a recording in which messages of some topics have another payload, None: are left out; return the path."""
    writer, data = McapWriter("edgert of a test"), b""
    data += writer.begin()
    for message in messages_of(path):
        payload = changes.get(message.topic, bytes)(bytes(message.data))
        if payload is not None:
            is_own = message.topic.startswith("/edgert/")
            topic = topic_named(message.topic) if is_own else Topic(message.topic, "x", b"", is_cdr=True)
            writer.add(topic, message.log_ns, message.publish_ns, payload, sequence=message.sequence)
    out.write_bytes(data + writer.end())
    return out


ASSETS = ROOT / "pipelines" / "assets"
MODEL = {
    "onnx": str(ASSETS / "parts.onnx"),
    "task": {"detect": "yolox", "labels": str(ASSETS / "parts.txt"), "score": 0.4},
    "input": {"resize": "letterbox", "color": "rgb", "mean": 0, "std": 255},
    "precision": "fp32",
    "threads": 1,
}
LEFT = {"left": [[0, 0], [0.5, 0], [0.5, 1], [0, 1]]}
SEEN = {"zone": "left"}
RULES = {"seen": {"zone": "left"}, "many": {"zone": "left", "count": 3}}
STAGES: dict[str, Any] = {
    "track": {"track": "bytetrack", "from": "find"},
    "look": {"infer": "parts", "from": "track", "crop": {"limit": 2, "margin": 0.5}},
    "areas": {"stage": "zones", "from": "track", "zones": LEFT},
    "alarm": {"stage": "events", "from": "areas", "rules": {"seen": SEEN, "many": {**SEEN, "count": 3}}},
}


def conveyor(seed: int, count: int, size: str = "320x240") -> Iterator[U8]:
    data = {"source": "python:conveyor:Conveyor", "size": size, "fps": 30, "seed": seed, "limit": count}
    source = source_for("belt", SourceStage.model_validate(data), Context(ROOT / "pipelines"))
    for frame in source.frames(threading.Event()):
        yield frame.to_bgr()
        frame.lease.release()


def conveyor_units(seed: int, count: int) -> list[bytes]:
    return h264_units(conveyor(seed, count), size=(320, 240), gop=15)


def record_belts(folder: Path, frames: int = 20, **changes: Any) -> Path:
    """Record a tracker, a cascade, zones and events on two video files; return the recording."""
    reordered = {"preset": "veryfast", "g": "10", "bf": "3"}
    for seed, options in (1, None), (2, reordered):
        write_clip(folder / f"{seed}.mp4", conveyor(seed, frames), size=(320, 240), options=options)
    stages: dict[str, Any] = {
        "a": {"source": str(folder / "1.mp4")},
        "b": {"source": str(folder / "2.mp4"), "fps": 20},
        "find": {"infer": "parts", "from": ["a", "b"]},
        **STAGES,
        "rec": {"sink": "mcap", "path": str(folder / "run.mcap"), "from": ["alarm", "look"]},
    }
    for name, keys in changes.items():
        stages[name] = {**stages.get(name, {}), **keys}
    with Pipeline({"models": {"parts": MODEL}, "stages": stages}) as pipeline:
        pipeline.run()
    return folder / "run.mcap"
