"""Evidence made by hand: a machine that has everything, from which tests take things away."""

import re
from pathlib import Path
from typing import Any

from edgert.board import detect
from edgert.diagnosis.probe import Answer, Evidence, Finding

ABSENT = Answer({}, is_absent=True)
WORKING: dict[str, Answer] = {
    "onnxruntime": Answer({"version": "1.20.0", "providers": ["CUDAExecutionProvider", "CPUExecutionProvider"]}),
    "cuda": Answer(
        {
            "driver": "12.6",
            "trouble": "",
            "gpus": [
                {"name": "Orin", "compute": "8.7", "memory_bytes": 16 * 2**30, "integrated": True, "can_map": True}
            ],
        }
    ),
    "tensorrt": Answer({"version": "10.3.0"}),
    "dla": Answer({"cores": 2}),
    "pycuda": Answer({"version": "2024.1"}),
    "nvdec": Answer({"version": "2.0.2", "no_nvenc": ""}),
    "av": Answer(
        {
            "version": "14.0.0",
            "ffmpeg": "7.1",
            "libavcodec": "61.19.100",
            "decoders": ["h264", "hevc"],
            "encoders": ["libx264", "mpeg4"],
            "v4l2": False,
        }
    ),
    "display": Answer({"viewer": "nv3dsink", "place": ":0", "refused": {}}),
    "cv2": Answer({"version": "4.10.0", "file": "/venv/site-packages/cv2/__init__.py", "gstreamer": False}),
    "gi": Answer(
        {
            "version": "1.20.3",
            "elements": ["appsink", "nvarguscamerasrc", "nvv4l2decoder", "nvvidconv", "h264parse", "nvv4l2h264enc"],
        }
    ),
}
NO_GPU = Answer({"driver": None, "gpus": [], "trouble": ""})


def evidence(root: Path, **answers: Answer) -> Evidence:
    """What probes see of the machine under ``root`` when packages answer like this, and work otherwise."""
    return Evidence(root, detect(root), {**WORKING, **answers})


def without(name: str, **facts: Any) -> Answer:
    """The working answer of a package with some facts changed."""
    return Answer({**WORKING[name].facts, **facts})


def check(found: Finding, state: str, detail: str, fix: str | None) -> None:
    """Check a finding; its detail and its fix are given as they begin, as regular expressions, the fix if it counts."""
    assert found.state == state and re.match(detail, found.detail), found
    assert fix is None or (re.match(fix, found.fix) if fix else not found.fix), found
