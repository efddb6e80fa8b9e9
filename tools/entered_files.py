"""Lists the files of edgert that one job enters, as a measure of how much a reader has to follow.

    python tools/entered_files.py int8      the demo's model is calibrated and quantized to INT8
    python tools/entered_files.py frame     a frame of a video goes through the demo's model to a JSON lines file
    python tools/entered_files.py run       edgert run of that pipeline, up to its first frame

Prints the files, relative to the repository, in which a function ran; code that runs at import is not counted. Of
``run``, only functions count that take the path, the file or the configuration of the pipeline. The
product is the one that Python imports: set PYTHONPATH to measure another tree.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import dla
import edgert

ROOT = Path(edgert.__file__).parents[1]
PRODUCT = tuple(f"{Path(str(package.__file__)).parent}/" for package in (edgert, dla))
MODEL = ROOT / "pipelines" / "assets" / "parts.onnx"
IMAGES = 16
_WARM, _FRAMES = 20, 60

_PIPELINE = """
schema: 1
name: trace
models:
  parts: {{onnx: {model}, task: {{detect: yolox}}, input: {{resize: letterbox, std: 255}}}}
stages:
  video: {{source: {folder}/video.avi}}
  find: {{infer: parts, from: video}}
  events: {{sink: jsonl, from: find, path: {folder}/out.jsonl}}
"""


class Calls:
    """Counter of ``wanted`` calls of edgert's functions by file, in all threads that start inside the block."""

    def __init__(self, wanted: Callable[[str, str, list[Any]], bool] = lambda *call: True) -> None:
        self.files: Counter[str] = Counter()
        self._wanted = wanted

    def __enter__(self) -> Calls:
        threading.setprofile(self._seen)
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _seen(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PRODUCT) and code.co_name != "<module>":
            file = Path(code.co_filename).relative_to(ROOT).as_posix()
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if self._wanted(file, code.co_name, [frame.f_locals[name] for name in names]):
                self.files[file] += 1


def int8() -> set[str]:
    """Return the files that calibrating and quantizing the model of a section enters."""
    from edgert.config import EmbedTask, ModelConfig
    from edgert.config.pipeline_file import parse_input
    from edgert.dataset import open_images
    from edgert.quantization.calibrated import calibrate_section
    from edgert.quantization.int8_model import quantize_section

    section = ModelConfig(onnx=MODEL, task=EmbedTask(embed="none"), input=parse_input("letterbox rgb std=255"))
    random = np.random.default_rng(0)
    images = open_images([random.integers(0, 256, (480, 640, 3), dtype=np.uint8) for _ in range(IMAGES)])

    def quantize() -> None:
        quantize_section(section, calibrate_section(section, target="ort", images=images), by_task=False)

    quantize()  # imports its modules
    with Calls() as calls:
        quantize()
    return set(calls.files)


def frame() -> set[str]:
    """Return the files that every frame of a running pipeline enters."""
    done = Counter[str]()

    def wanted(file: str, function: str, arguments: list[Any]) -> bool:
        if file.startswith("edgert/stages/sink/") and function == "process":
            done["frames"] += 1
        return _WARM <= done["frames"] < _WARM + _FRAMES

    with (
        tempfile.TemporaryDirectory(prefix="edgert-") as folder,
        Calls(wanted) as calls,
        edgert.Pipeline(_write_pipeline(Path(folder))) as pipeline,
    ):
        pipeline.run()
    return {file for file, count in calls.files.items() if count >= _FRAMES / 2}


def run() -> set[str]:
    """Return the files that the pipeline of ``edgert run`` passes before its first frame is in a sink."""
    from edgert.cli import main
    from edgert.config import PipelineConfig, PipelineFile

    done, path = list[str](), Path()

    def wanted(file: str, function: str, arguments: list[Any]) -> bool:
        if file.startswith("edgert/stages/sink/") and function == "process":
            done.append(file)
        passes_pipeline = any(
            isinstance(one, (PipelineFile, PipelineConfig)) or one in (path, str(path)) for one in arguments
        )
        return not done and passes_pipeline

    with tempfile.TemporaryDirectory(prefix="edgert-") as folder:
        path = _write_pipeline(Path(folder))
        sys.argv = ["edgert", "run", str(path)]
        with Calls(wanted) as calls, redirect_stdout(StringIO()), suppress(SystemExit):
            main()
    return set(calls.files)


def _write_pipeline(folder: Path) -> Path:
    """Write the pipeline and its video, and return the pipeline's path."""
    _write_video(folder / "video.avi")
    path = folder / "trace.yaml"
    path.write_text(_PIPELINE.format(model=MODEL, folder=folder), encoding="utf-8")
    return path


def _write_video(path: Path) -> None:
    import cv2

    random = np.random.default_rng(0)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 30, (640, 480))
    for _ in range(_WARM + 2 * _FRAMES):
        writer.write(np.full((480, 640, 3), random.integers(0, 256, 3), np.uint8))
    writer.release()


if __name__ == "__main__":
    print("\n".join(sorted({"int8": int8, "frame": frame, "run": run}[sys.argv[1]]())))
