"""H.264 files that the GPU's own decoders decode, through ResNet-50, by the public API: frames per second, and of what.

EDGERT_GPU_FILES 1080p files (8) of EDGERT_GPU_FRAMES images (2400), `decode: gpu`, one stage in batches of
EDGERT_GPU_BATCH (8), and a sink that forgets; ResNet-50 in FP16, random weights, by EDGERT_GPU_ENGINE
(onnxruntime-cuda). Frames per second are those of the middle of the run, when all files are under way. ``cpu_us`` is
processor time of this process per frame, the other ``*_us`` that of one kind of thread; waits for the decoder may spin,
and count. Before, the same files are decoded with nobody behind. EDGERT_GPU_FOLDER keeps files and network for the next
time. Needs PyCUDA, PyTorch with torchvision, ONNX Runtime with CUDA, and PyNvVideoCodec; says so and passes where one
is missing.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parents[2]))

import av

import edgert
from edgert.benchmark.measure import Figure
from edgert.config.stages import SourceStage
from edgert.memory.cuda import open_device
from edgert.stages.source.files import VideoFile
from edgert.stages.source.kinds import source_for
from edgert.stages.source.nvdec import missing
from tests.bench.report import main
from tests.helpers.clips import numbered, write_clip

FILES, COUNT = int(os.environ.get("EDGERT_GPU_FILES", "8")), int(os.environ.get("EDGERT_GPU_FRAMES", "2400"))
BATCH, ENGINE = int(os.environ.get("EDGERT_GPU_BATCH", "8")), os.environ.get("EDGERT_GPU_ENGINE", "onnxruntime-cuda")
ROUNDS, FOLDER = int(os.environ.get("EDGERT_GPU_ROUNDS", "3")), os.environ.get("EDGERT_GPU_FOLDER", "")
SIZE, IMAGES, SIDE = (1920, 1080), 60, 224
BAR_FPS = 3000
_POLL_S, _MIDDLE = 0.2, (0.15, 0.9)


def network(path: Path) -> Path:
    from tests.bench import gpu_peer

    return path if path.exists() else gpu_peer.export(gpu_peer.network("resnet50").cuda().half(), SIDE, True, path)


def clips(folder: Path) -> list[Path]:
    """FILES names of one file, which every source opens by itself."""
    path = folder / f"long{COUNT}.mp4"
    clip = path if path.exists() else long_clip(path)
    found = [folder / f"file{number}.mp4" for number in range(FILES)]
    for one in found:
        one.unlink(missing_ok=True)
        one.symlink_to(clip)
    return found


def long_clip(path: Path) -> Path:
    """One file of COUNT images: a second or two are encoded once, and written one behind the other."""
    options = {"preset": "veryfast", "crf": "23", "g": "30", "flags": "+cgop"}
    short = write_clip(path.with_name("short.mp4"), numbered(IMAGES, SIZE), size=SIZE, options=options)
    with av.open(str(path), "w") as out:
        stream: Any = None
        for start in range(0, COUNT, IMAGES):
            with av.open(str(short)) as again:
                source = again.streams.video[0]
                stream = stream or out.add_stream_from_template(source)
                tick = Fraction(1, 30) / (source.time_base or Fraction(1, 30))
                for packet in again.demux(source):
                    if packet.size and packet.pts is not None and packet.dts is not None:
                        packet.pts, packet.dts = packet.pts + int(start * tick), packet.dts + int(start * tick)
                        packet.stream = stream
                        out.mux(packet)
    return path


def pipeline_text(model: Path, files: list[Path]) -> str:
    sources = [f"  cam{number}: {{source: {path}, decode: gpu, realtime: false}}" for number, path in enumerate(files)]
    names = ", ".join(f"cam{number}" for number in range(len(files)))
    batch = f", batch: {{max: {BATCH}, wait: 5ms}}" if BATCH > 1 else ""
    mean, std = "[123.675, 116.28, 103.53]", "[58.395, 57.12, 57.375]"
    return "\n".join(
        [
            "schema: 1",
            "name: files",
            f"engines: [{ENGINE}]",
            "models:",
            f"  net: {{onnx: {model}, task: {{classify: softmax}}, "
            f"input: {{resize: stretch, mean: {mean}, std: {std}}}}}",
            "stages:",
            *sources,
            f"  find: {{infer: net, from: [{names}]{batch}}}",
            "  end: {sink: null, from: find}",
            "",
        ]
    )


@dataclass(frozen=True)
class Reading:
    results: int
    at_s: float
    cpu_s: float
    threads: dict[str, float]


def read(pipeline: edgert.Pipeline) -> Reading:
    threads: dict[str, float] = defaultdict(float)
    for one in threading.enumerate():
        try:
            text = Path(f"/proc/self/task/{one.native_id}/schedstat").read_text(encoding="utf-8")
        except OSError:
            continue
        kind = one.name.removeprefix("edgert:") if one.name.startswith("edgert:") else "others"
        threads["source" if kind.startswith("cam") else kind] += int(text.split()[0]) / 1e9
    results = pipeline.summary().stages["end"].results_in
    return Reading(results, time.perf_counter(), time.process_time(), threads)


@dataclass(frozen=True)
class Run:
    fps: float
    detail: dict[str, float]


def run(path: Path) -> Run:
    readings, decoders = list[Reading](), _decoders_busy()
    with edgert.Pipeline(path) as pipeline:
        pipeline.start()
        while pipeline.running:
            time.sleep(_POLL_S)
            readings.append(read(pipeline))
        pipeline.wait()
        summary = pipeline.summary()
    total = summary.frames_out
    if total != FILES * COUNT:
        raise SystemExit(f"{total} of {FILES * COUNT} frames came through")
    first = next(one for one in readings if one.results >= _MIDDLE[0] * total)
    last = [one for one in readings if one.results <= _MIDDLE[1] * total][-1]
    frames = last.results - first.results
    if frames <= 0:
        raise SystemExit("too short to be measured: set EDGERT_GPU_FRAMES higher")
    taken = {kind: last.threads.get(kind, 0.0) - first.threads.get(kind, 0.0) for kind in last.threads}
    parts = {f"{kind}_us": seconds / frames * 1e6 for kind, seconds in taken.items()}
    steps = [
        (b.results - a.results) / (b.at_s - a.at_s) for a, b in pairwise(readings) if first.at_s <= a.at_s < last.at_s
    ]
    detail = {
        "cpu_us": (last.cpu_s - first.cpu_s) / frames * 1e6,
        "whole_fps": total / summary.seconds,
        "steps_least_fps": min(steps, default=0.0),
        "copies_per_frame": summary.memory.copies_per_frame,
        "decoders_percent": decoders(),
        **parts,
    }
    graph = summary.engine["net"].get("graph", "yes")
    place = summary.notes.frames.get("cam0", "?")
    print(f"    {frames / (last.at_s - first.at_s):.0f} frames/s; frames {place}; graph {graph}")
    return Run(frames / (last.at_s - first.at_s), detail)


def decoded_alone(files: list[Path]) -> tuple[float, float]:
    """Frames per second, and processor time per frame in microseconds, of sources whose frames nobody looks at."""
    device, threads = open_device(), list[threading.Thread]()
    for number, path in enumerate(files):
        source = cast("VideoFile", source_for(f"cam{number}", SourceStage(source=str(path))))
        if reason := source.on_gpu(device):
            raise SystemExit(reason)
        threads.append(threading.Thread(target=_take, args=(source,)))
    started, before = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    count = FILES * COUNT
    return count / (time.perf_counter() - started), (time.process_time() - before) / count * 1e6


def _take(source: VideoFile) -> None:
    for frame in source.frames(threading.Event()):
        frame.lease.release()
    source.close()


def _decoders_busy() -> Any:
    """Starts to look at the decoders' load, where nvidia-smi shows it; what it returns gives the highest seen."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return lambda: -1.0
    fields = "--query-gpu=utilization.decoder"
    process = subprocess.Popen(
        [tool, fields, "--format=csv,noheader,nounits", "-lms", "500"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip

    def most() -> float:
        process.terminate()
        lines = process.communicate()[0].split()
        return max((float(line) for line in lines if line.replace(".", "").isdigit()), default=-1.0)

    return most


def measure() -> Iterator[Figure]:
    if reason := missing():
        print(f"skipped: {reason}")
        return
    with ExitStack() as stack:
        folder = Path(FOLDER or stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        model, files = network(folder / "net.onnx"), clips(folder)
        size = files[0].stat().st_size
        common = {"megabit_s": size * 8 / (COUNT / 30) / 1e6, "cores": float(os.cpu_count() or 0)}
        alone = [decoded_alone(files) for _ in range(ROUNDS)]
        fps = statistics.median(one for one, _ in alone)
        us = statistics.median(one for _, one in alone)
        yield Figure(
            f"{FILES} files decoded by one GPU, no model", fps, "fps", None, "higher", ROUNDS * FILES * COUNT,
            {**common, "cpu_us": us},
        )  # fmt: skip
        text = folder / "pipeline.yaml"
        text.write_text(pipeline_text(model, files), encoding="utf-8")
        runs = [run(text) for _ in range(ROUNDS)]
    detail = {key: statistics.median(one.detail.get(key, 0.0) for one in runs) for key in runs[0].detail}
    n, title = ROUNDS * FILES * COUNT, f"{FILES} files to ResNet-50, batch {BATCH}"
    yield Figure(title, statistics.median(one.fps for one in runs), "fps", BAR_FPS, "higher", n, detail)
    yield Figure(f"{title}: processor time per frame", detail["cpu_us"], "µs", None, "lower", n)


if __name__ == "__main__":
    main(__doc__ or "", measure)
