"""Measurements of ``edgert bench``, with start times in new processes."""

import importlib.metadata
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from edgert.benchmark.measure import Figure, cpu_ms, interleave, median_ratio, wall_ms
from edgert.benchmark.overhead import engine_speed, growth, hop, overhead
from edgert.board.host import core_count
from edgert.config import InferStage, InputConfig, load_pipeline
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, StageError
from edgert.installation import demo_images
from edgert.memory import Counter, aligned_empty
from edgert.pipeline import Pipeline
from edgert.runtime import Result
from edgert.stages import crop, preprocess
from edgert.stages.context import Context
from edgert.stages.sink.video import VideoSink
from edgert.stages.source.kinds import source_for

_LIMIT_S = 3600.0  # time limit of a measured process, whose first run may compile an engine


def write_scene(path: Path, width: int, height: int, frames: int, seed: int = 5) -> Path:
    """Write the demo's images to an H.264 file, the same everywhere, and return ``path``."""
    size = f"{width}x{height}"
    config = SourceStage(source=demo_images(), size=size, fps=30, seed=seed, limit=frames)  # type: ignore[arg-type]
    source = source_for("scene", config)
    sink = VideoSink("clip", path, encode="cpu")
    sink.open()
    try:
        for frame in source.frames(threading.Event()):
            sink.process(Result(frame))
            frame.lease.release()
    finally:
        sink.close()
        source.close()
    return path


F32 = npt.NDArray[np.float32]
_COCO_PAD = 114


@dataclass(frozen=True, slots=True)
class Letterbox:
    """Preprocessing in a loop with OpenCV: centered or top-left letterbox, BGR or RGB, 0–255 or 0–1."""

    width: int
    height: int
    top_left: bool
    rgb: bool
    scale: float

    def config(self) -> InputConfig:
        """Return the same preprocessing as edgert's input section."""
        anchor, color = "top_left" if self.top_left else "center", "rgb" if self.rgb else "bgr"
        return InputConfig(resize="letterbox", anchor=anchor, color=color, std=(1 / self.scale,))  # type: ignore[arg-type]

    def apply(self, bgr: npt.NDArray[np.uint8]) -> tuple[F32, crop.Geometry]:
        """Return a (1, 3, height, width) float32 tensor and the mapping back, by typical OpenCV code."""
        h, w = bgr.shape[:2]
        ratio = min(self.width / w, self.height / h)
        new_w, new_h = round(w * ratio), round(h * ratio)
        left, top = (0, 0) if self.top_left else ((self.width - new_w) // 2, (self.height - new_h) // 2)
        canvas = np.full((self.height, self.width, 3), _COCO_PAD, np.uint8)
        canvas[top : top + new_h, left : left + new_w] = cv2.resize(bgr, (new_w, new_h))
        image = canvas[:, :, ::-1] if self.rgb else canvas
        tensor = np.ascontiguousarray(image.transpose(2, 0, 1)[None], dtype=np.float32)
        if self.scale != 1:
            tensor *= self.scale
        scale_x, scale_y = w / new_w, h / new_h
        network, bounds = (self.width, self.height), (0.0, 0.0, float(w), float(h))
        return tensor, crop.Geometry(scale_x, scale_y, -left * scale_x, -top * scale_y, network, bounds)


def read_bgr(clip: Path) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the frames of ``cv2.VideoCapture``."""
    capture = cv2.VideoCapture(str(clip))
    try:
        while True:
            ok, frame = capture.read()
            if not ok:
                return
            yield frame  # type: ignore[misc]
    finally:
        capture.release()


def preprocess_cost(clip: Path, frames: int, size: int = 640, rounds: int = 7) -> list[Figure]:
    """Return CPU time and copies per frame, from a video file to the network's tensor, compared with OpenCV."""
    recipe = Letterbox(size, size, False, True, 1 / 255)
    tensor = aligned_empty((1, 3, size, size), np.float32)
    preprocessor, counter = preprocess.Preprocessor(recipe.config(), tensor), Counter()

    def convert() -> None:
        for frame in _frames(clip, counter):
            preprocessor.into(0, frame)
            frame.lease.release()

    def ours() -> float:
        return cpu_ms(convert) / frames

    def theirs() -> float:
        return cpu_ms(lambda: [recipe.apply(bgr) for bgr in read_bgr(clip)]) / frames

    mine, loop = interleave(rounds, ours, theirs)
    detail = {"edgert_cpu_ms": statistics.median(mine), "opencv_cpu_ms": statistics.median(loop), "frames": frames}
    return [
        Figure("H.264 → tensor, CPU time", median_ratio(mine, loop), "of the loop's", 0.6, n=rounds, detail=detail),
        Figure(
            "host copies, decoded planes → bound input",
            counter.read().copies,
            "copies",
            0.0,
            n=rounds * frames,
            is_exact=True,
        ),
    ]


def preprocess_error(clip: Path, size: int = 640) -> Figure:
    """Return the mean difference, in gray levels, of edgert's tensor from that of the OpenCV loop in the image."""
    recipe = Letterbox(size, size, False, True, 1 / 255)
    tensor = aligned_empty((1, 3, size, size), np.float32)
    preprocessor = preprocess.Preprocessor(recipe.config(), tensor)
    errors = []
    frames = _frames(clip, Counter())
    for frame, bgr in zip(frames, read_bgr(clip), strict=False):
        preprocessor.into(0, frame)
        frame.lease.release()
        theirs, _ = recipe.apply(bgr)
        rows = round(size * min(1.0, bgr.shape[0] / bgr.shape[1]))
        errors.append(float(np.abs(tensor - theirs).sum()) * 255 / (3 * rows * size))
    mean, detail = statistics.mean(errors), {"worst_frame": max(errors)}
    name = "difference to the OpenCV loop"
    return Figure(name, mean, "gray levels", 1.5, n=len(errors), detail=detail, is_exact=True)


def _frames(clip: Path, counter: Counter) -> Iterator[Any]:
    source = source_for("clip", SourceStage(source=str(clip.resolve())), Context(counter=counter))
    try:
        yield from source.frames(threading.Event())
    finally:
        source.close()


CLIP_FRAMES = 90
_QUICK_S = 2.0
"""Seconds to measure an engine with each number of threads, in at least five runs."""


def bench(target: Path, quick: bool = False) -> Iterator[Figure]:
    """Yield figures of a model by threads, or of edgert around a pipeline's models, as they are measured.

    Only exact figures keep their bars, because other figures depend on the machine. ``make bench`` checks all bars.
    """
    yield from (figure if figure.is_exact else replace(figure, bar=None) for figure in _measure_all(target, quick))


def _measure_all(target: Path, quick: bool) -> Iterator[Figure]:
    if target.suffix == ".onnx":
        limit_s = _QUICK_S if quick else math.inf
        yield from (engine_speed(target, threads, limit_s=limit_s) for threads in sorted({1, core_count()}))
        return
    rounds = 3 if quick else 9
    models = load_pipeline(target).config.models
    if not models:
        raise ConfigError(f"{target} has no models", why="the overhead is relative to an engine")
    for model in models.values():
        yield overhead(model, rounds, bar=None)
    yield hop(rounds)
    yield from growth()
    with tempfile.TemporaryDirectory(prefix="edgert-") as folder:
        clip = write_scene(Path(folder) / "scene.mp4", 1920, 1080, CLIP_FRAMES)
        yield from preprocess_cost(clip, CLIP_FRAMES, rounds=rounds)
        yield preprocess_error(clip)
    yield from startup(target, rounds)


_EVERYTHING = "import edgert.pipeline, av, onnx, onnxruntime"
_RSS = "from edgert.meters import peak_rss_bytes; print(peak_rss_bytes() / 2**20)"


def startup(pipeline: Path, rounds: int = 5) -> list[Figure]:
    """Return import, help, first result of a pipeline, resident memory and install size."""
    return [
        _time_process("import edgert", ["-c", "import edgert"], 300.0, rounds, less=["-c", "pass"]),
        _time_process("edgert --help", ["-m", "edgert", "--help"], 300.0, rounds),
        first_result(pipeline, rounds),
        resident(rounds),
        *installed(),
    ]


def first_result(pipeline: Path, rounds: int = 5) -> Figure:
    """Return seconds from the start of the process to the pipeline's first result, with a warm engine cache."""
    code = (
        "import sys, edgert\n"
        f"with edgert.Pipeline({str(pipeline.absolute())!r}) as pipeline:\n"
        "    next(pipeline.results(sys.argv[1], timeout=60))\n"
    )
    with Pipeline(pipeline) as here:  # here --no-code refuses the file's own code, which other processes would run
        stages = here.file.config.stages
    stage = next(name for name, stage in stages.items() if isinstance(stage, InferStage))
    with tempfile.TemporaryDirectory() as folder:  # sinks write relative to the working folder
        run = partial(_output, ["-c", code, stage], folder)
        run()  # fills the cache
        samples = [wall_ms(run) / 1e3 for _ in range(rounds)]
    return Figure(f"start to first result and back, {pipeline.stem}", statistics.median(samples), "s", 2.0, n=rounds)


def resident(rounds: int = 3) -> Figure:
    """Return peak resident memory after all imports of a pipeline, without a model."""
    samples = [float(_output(["-c", f"{_EVERYTHING}; {_RSS}"])) for _ in range(rounds)]
    return Figure("resident memory before a model", statistics.median(samples), "MiB", 150.0, n=rounds)


def installed() -> list[Figure]:
    """Return the packages of edgert without extras, and their size on disk, in this environment."""
    names = _required_packages("edgert")
    size = sum(_size_bytes(name) for name in names)
    return [
        Figure("packages installed", len(names), "packages", 30.0, detail={"names": sorted(names)}),
        Figure("installed size", size / 1e6, "MB", 480.0),
    ]


def _time_process(name: str, arguments: list[str], bar_ms: float, rounds: int, less: list[str] | None = None) -> Figure:
    run = partial(_output, arguments)
    run()  # byte-compiles
    samples = [wall_ms(run) - (wall_ms(partial(_output, less)) if less else 0.0) for _ in range(rounds)]
    return Figure(name, statistics.median(samples), "ms", bar_ms, n=rounds)


def _output(arguments: list[str], folder: str | None = None) -> str:
    run = [sys.executable, *arguments]
    done = subprocess.run(run, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False)  # noqa: S603 - our interpreter
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line[:1].strip()][-1:] or [f"exit code {done.returncode}"]
        raise StageError("a process to measure failed", why=last[0], fix="edgert run on this pipeline shows more")
    return done.stdout


def _required_packages(package: str, found: set[str] | None = None) -> set[str]:
    found = set() if found is None else found
    key = re.sub(r"[-_.]+", "-", package).lower()
    if key in found:
        return found
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:  # for another system or Python
        return found
    found.add(key)
    for requirement in distribution.requires or ():
        if "extra ==" not in requirement:
            match = re.match(r"[A-Za-z0-9._-]+", requirement)
            assert match is not None, requirement
            _required_packages(match[0], found)
    return found


def _size_bytes(package: str) -> int:
    distribution = importlib.metadata.distribution(package)
    editable = json.loads(distribution.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable")
    if editable:
        home = Path(__file__).parent.parent
        return sum(path.stat().st_size for path in home.rglob("*.py"))
    paths = (Path(str(distribution.locate_file(file))) for file in distribution.files or ())
    return sum(path.stat().st_size for path in paths if path.is_file())
