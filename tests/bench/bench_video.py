"""Bar 2: 1080p H.264 → tensor in ≤ 0.6 of the OpenCV loop's CPU time; the whole pipeline ≥ 1.25 of its frames/s.

The clip is made of the evaluation photos, each shown for a few frames while the view drifts over it, so that the
video has the content of photos and the motion of a camera. The OpenCV loop is the one people write:
VideoCapture.read, resize, letterbox, float NCHW, session.run, and the same decoder.
"""

import json
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
from report import DATA, main, needs

from edgert.benchmark.measure import Figure, interleave, median_ratio, wall_ms
from edgert.benchmark.suite import Letterbox, preprocess_cost, preprocess_error, read_bgr
from edgert.board.host import core_count
from edgert.config import DetectTask
from edgert.memory import Counter, lend
from edgert.pipeline import Pipeline
from edgert.runtime import Detections, Frame, Result
from edgert.runtime.json_form import plain
from edgert.stages.bytetrack import iou
from edgert.stages.decode.kinds import decoder_for
from edgert.stages.sink.video import VideoSink

FRAMES, PER_PHOTO = 240, 10
WIDTH, HEIGHT = 1920, 1080
PIPELINE = """
models:
  coco: {{onnx: {onnx}, task: {{detect: yolox, score: 0.3}}, input: {{anchor: top_left, color: bgr}}}}
stages:
  clip: {{source: {clip}}}
  find: {{infer: coco, from: clip}}
  keep: {{sink: callback, from: find}}
  events: {{sink: jsonl, from: find, path: {out}}}
"""


def whole_pipeline(
    pipeline: Callable[[], list[Detections]], loop: Callable[[], list[Detections]], rounds: int = 5
) -> list[Figure]:
    found = (pipeline(), loop())
    mine, theirs = interleave(rounds, lambda: wall_ms(pipeline), lambda: wall_ms(loop))
    frames = len(found[0])
    detail: dict[str, Any] = {
        "edgert_fps": frames / statistics.median(mine) * 1e3,
        "opencv_fps": frames / statistics.median(theirs) * 1e3,
    }
    agreement, pairs = agreement_of(*found)
    return [
        Figure("pipeline / sequential loop", median_ratio(theirs, mine), "of its fps", 1.25, "higher", rounds, detail),
        Figure("detections ≥ 0.4 that both find at IoU ≥ 0.9", agreement * 100, "%", 99.0, "higher", pairs),
    ]


def agreement_of(first: list[Detections], second: list[Detections], score: float = 0.4) -> tuple[float, int]:
    """The part of ``first``'s detections that ``second`` has too: same frame, same class, IoU ≥ 0.9; and their number.

    A detection whose score lies at the threshold may be on either side of it, so the other's may be a little lower.
    """
    same = total = 0
    for mine, theirs in zip(first, second, strict=True):
        wanted = mine[mine.scores >= score]
        overlap = iou(*(one.boxes.T.astype(float) for one in (wanted, theirs))) * (
            wanted.classes[:, None] == theirs.classes[None]
        )
        total += len(wanted)
        same += int((overlap.max(axis=1, initial=0) >= 0.9).sum())
    return (same / total if total else 1.0), total


def write_photos(path: Path) -> Path:
    photos = sorted((DATA / "images" / "coco_val").glob("*.jpg"))
    sink = VideoSink("clip", path, encode="cpu")
    sink.open()
    counter = Counter()
    for n in range(FRAMES):
        photo = cv2.imread(str(photos[n // PER_PHOTO % len(photos)]))
        scale = 1.1 * max(WIDTH / photo.shape[1], HEIGHT / photo.shape[0])
        large = cv2.resize(photo, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
        x, y = 4 * (n % PER_PHOTO), 2 * (n % PER_PHOTO)
        image = np.ascontiguousarray(large[y : y + HEIGHT, x : x + WIDTH])
        frame = Frame("x", n, n, n * 33_333_333, WIDTH, HEIGHT, "bgr", (image,), lend(image, counter))
        sink.process(Result(frame))
    sink.close()
    return path


def sequential(clip: Path, onnx: Path, out: Path) -> list[Detections]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = core_count()
    session = onnxruntime.InferenceSession(str(onnx), options, providers=["CPUExecutionProvider"])
    decode = decoder_for(DetectTask(detect="yolox", score=0.3), ())
    recipe = Letterbox(416, 416, True, False, 1.0)
    found = []
    with out.open("w") as lines:
        for bgr in read_bgr(clip):
            tensor, geometry = recipe.apply(bgr)
            outputs = session.run(None, {"images": tensor})
            found.append(decode([outputs[0][0]], geometry))
            lines.write(json.dumps(plain(found[-1])) + "\n")
    return found


def piped(clip: Path, onnx: Path, folder: Path) -> list[Detections]:
    file = folder / "bench.yaml"
    file.write_text(PIPELINE.format(onnx=onnx, clip=clip, out=folder / "ours.jsonl"))
    found: list[Detections] = []
    with Pipeline(file, callbacks={"keep": lambda result: found.append(result.detections)}) as pipeline:
        pipeline.run()
    return found


def measure() -> Iterator[Figure]:
    onnx = DATA / "models" / "yolox_nano_416.onnx"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        clip = write_photos(folder / "photos.mp4")
        yield from preprocess_cost(clip, FRAMES)
        yield preprocess_error(clip)
        yield from whole_pipeline(
            lambda: piped(clip, onnx, folder), lambda: sequential(clip, onnx, folder / "theirs.jsonl")
        )


if __name__ == "__main__":
    needs("models/yolox_nano_416.onnx", "images/coco_val")
    main(__doc__.splitlines()[0], measure)
