"""What bench_unseen.py measures of stages: other pipelines, each with one network at the most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from bench_cpu_stages import OBJECTS, SIZES
from pace import Pace, mean_ms
from quiet import quietly
from unseen import NETWORKS, REFERENCE, Case, boxes, camera, film, input_mp, output_m, run
from unseen_networks import MEASURED

from edgert.jitter import Quantiles
from edgert.runtime import Summary

BESIDE = (
    "parts", "mobilenet_v1_025_224", "mobilenet_v2_quant", "nanodet_m_320", "osnet_x0_25_msmt17", "squeezenet_fp32",
    "ultraface_rfb_320", "yolox_nano_416",
)  # fmt: skip
"""Networks around which is measured what a stage takes beside them."""
BEHIND = tuple(name for name in MEASURED if name in NETWORKS)
"""Networks that are run behind a camera."""
STARTS = 2
"""Of two cameras, and of three, how often; each time, their frames meet or do not, as they began."""
EASY_FPS, EASY_S = 25.0, 3.0
"""Of the other pipelines: a camera's, as stages take longer the longer they rest between frames."""
BRISK_FPS = 200.0
RESTS_S, BEHIND_SIZE, FEWEST, BEHIND_S = (0.025, 0.08), (1280, 720), 30, 2.0
"""How long networks behind a camera wait for the next frame; its frames, at least so many, for at least so long."""
Row = tuple[float, ...]
"""What a time is fitted to: one, and amounts."""


@dataclass(frozen=True)
class Behind:
    """A network behind a camera.

    Attributes:
        stage_ms: of a frame, with what the stage does beside the network.
        cpu_ms: that the whole process takes of the processor for a frame.
        jitter: of the stage.
    """

    stage_ms: float
    cpu_ms: float
    jitter: Quantiles


@dataclass
class Others:
    """One round of other pipelines.

    Attributes:
        stages: kind → (1, megapixels, objects) → milliseconds.
        brisk: the same of those stages that a brisk pipeline has.
        beside: network → :func:`beside` → milliseconds beside the network.
        behind: network → (threads, rest) → how it does behind a camera.
        jitters: kind → those of its threads.
        late: of threads right behind a camera (``first``), of others (``next``), and of any where frames follow one
            another at :data:`BRISK_FPS` (``brisk``).
        hand_over_ms: of each thread, what passing a result on takes.
        gaps_ms: between the first frames of one camera and the next.
    """

    stages: dict[str, dict[Row, float]] = field(default_factory=lambda: defaultdict(dict))
    brisk: dict[str, dict[Row, float]] = field(default_factory=lambda: defaultdict(dict))
    beside: dict[str, dict[Row, float]] = field(default_factory=lambda: defaultdict(dict))
    behind: dict[str, dict[tuple[int, float], Behind]] = field(default_factory=lambda: defaultdict(dict))
    jitters: dict[str, list[Quantiles]] = field(default_factory=lambda: defaultdict(list))
    late: dict[str, list[Quantiles]] = field(default_factory=lambda: defaultdict(list))
    hand_over_ms: list[float] = field(default_factory=list)
    gaps_ms: list[float] = field(default_factory=list)


FIRST = "net"
ALONE = {FIRST: (REFERENCE, "backend: ort, threads: 1")}
OTHER = """  track: {track: bytetrack, from: boxes}
  draw: {draw: [boxes, labels], from: track}
  trails: {draw: [boxes, labels, trails, stats], from: draw}
  images: {sink: images, from: trails, path: other}
  jsonl: {sink: jsonl, from: track, path: other.jsonl}
"""
INFER = "  it: {infer: it, from: still}\n  end: {sink: 'null', from: it}\n"
OUTLETS = {"still": 1, "boxes": 1, "track": 2, "draw": 1, "trails": 1}
"""Stage of these → how many listen to it."""
BRISK = """  track: {track: bytetrack, from: boxes}
  jsonl: {sink: jsonl, from: track, path: other.jsonl}
"""
"""What keeps up with as many frames: what is used that often stays in the caches, and takes less time."""


def others(folder: Path, reference_ms: float, runs_ms: Mapping[str, float]) -> Others:
    """Other pipelines, at an easy rate: every kind of stage behind a network, in two sizes with few objects and many;
    decoding; networks behind a camera; and what is done beside networks, by a backend that computes nothing.

    Args:
        reference_ms: the reference's run, for which the times are given.
        runs_ms: of each of :data:`BEHIND`, about.
    """
    found = Others()
    for size in SIZES:
        for objects in OBJECTS:
            _stages(found, folder, reference_ms, size, objects)
        _beside(found, folder, reference_ms, size)
        _starts(found, folder, size)
        _decode(found, folder, reference_ms, size)
    for name in BEHIND:
        _behind(found, folder, reference_ms, name, runs_ms[name])
    return found


def _stages(found: Others, folder: Path, reference_ms: float, frame: tuple[int, int], objects: int) -> None:
    size, row = size_of(frame), (1.0, megapixels_of(frame), float(objects))
    easy = camera("still", size, EASY_FPS, EASY_S) + f"  {FIRST}: {{infer: {FIRST}, from: still}}\n"
    brisk = camera("still", size, BRISK_FPS, EASY_S)
    cases = (
        Case("other", ALONE, easy + boxes(objects, FIRST) + OTHER),
        Case("brisk", {}, brisk + boxes(objects, "still") + BRISK),
    )
    ((easily, _), (briskly, _)), pace = watched(folder, cases, reference_ms)
    for name, stage in easily.stages.items():
        found.stages[name][row] = stage.busy_ms_per_result / pace
        if name != "still":
            measured = easily.simulation[name]
            found.jitters[name].append(measured.jitter)
            found.late["first" if name == FIRST else "next"].append(measured.wakeup_latency_ms)
        if outlets := OUTLETS.get(name, 0):
            ms = stage.busy_ms_per_result * stage.wait_out_percent / stage.busy_percent
            found.hand_over_ms.append(ms / pace / outlets)
    for name, stage in briskly.stages.items():
        found.brisk[name][row] = stage.busy_ms_per_result / pace
        if name != "still":
            found.late["brisk"].append(briskly.simulation[name].wakeup_latency_ms)


def _beside(found: Others, folder: Path, reference_ms: float, frame: tuple[int, int]) -> None:
    still = camera("still", size_of(frame), EASY_FPS, BEHIND_S)
    cases = [Case("beside", {"it": (name, "backend: 'null'")}, still + INFER) for name in BESIDE]
    runs, pace = watched(folder, cases, reference_ms)
    for name, (summary, _) in zip(BESIDE, runs, strict=True):
        found.beside[name][beside(name, megapixels_of(frame))] = summary.stages["it"].busy_ms_per_result / pace


def _starts(found: Others, folder: Path, frame: tuple[int, int]) -> None:
    for number in (2, 3) * STARTS:
        names = [f"camera{n}" for n in range(number)]
        text = "".join(camera(name, size_of(frame), EASY_FPS, 1.0) for name in names)
        text += f"  look: {{infer: {FIRST}, from: [{', '.join(names)}]}}\n  end: {{sink: 'null', from: look}}\n"
        began = run(folder, Case("starts", ALONE, text))[0].simulation
        firsts_ms = sorted(began[name].first_result_ms or 0.0 for name in names)
        found.gaps_ms += [later - earlier for earlier, later in pairwise(firsts_ms)]


def _decode(found: Others, folder: Path, reference_ms: float, frame: tuple[int, int]) -> None:
    size = size_of(frame)
    film(folder, f"{size}.mp4", size)
    text = f"  decode: {{source: {size}.mp4, decode: cpu}}\n  end: {{sink: 'null', from: decode}}\n"
    ((summary, _),), pace = watched(folder, [Case("decode", {}, text)], reference_ms)
    found.stages["decode"][1.0, megapixels_of(frame), 0.0] = summary.stages["decode"].busy_ms_per_result / pace


def _behind(found: Others, folder: Path, reference_ms: float, name: str, run_ms: float) -> None:
    ways = [(threads, rest_s) for threads in (1, 2) for rest_s in RESTS_S]
    cases = []
    for threads, rest_s in ways:
        fps = 1 / (rest_s + run_ms / 1e3)
        still = camera("still", size_of(BEHIND_SIZE), fps, max(BEHIND_S, FEWEST / fps))
        cases.append(Case("behind", {"it": (name, f"backend: ort, threads: {threads}")}, still + INFER))
    runs, pace = watched(folder, cases, reference_ms)
    for way, (summary, cores) in zip(ways, runs, strict=True):
        stage_ms, cpu_ms = summary.stages["it"].busy_ms_per_result, 1e3 * cores / summary.fps
        found.behind[name][way] = Behind(stage_ms / pace, cpu_ms / pace, summary.simulation["it"].jitter)


def beside(name: str, megapixels: float, frames: int = 1) -> Row:
    """What the time depends on that a stage takes beside its network, for so many frames or crops of that size."""
    return 1.0, frames * megapixels, frames * input_mp(name), frames * output_m(name)


def size_of(frame: tuple[int, int]) -> str:
    """As pipeline files have it."""
    return f"{frame[0]}x{frame[1]}"


def megapixels_of(frame: tuple[int, int]) -> float:
    """Of one frame."""
    return frame[0] * frame[1] / 1e6


def watched(folder: Path, cases: Sequence[Case], reference_ms: float) -> tuple[list[tuple[Summary, float]], float]:
    """Of runs one after the other: summaries with the cores that were busy, and how many times as long everything
    took."""

    def paced() -> tuple[list[tuple[Summary, float]], Pace]:
        with Pace() as pace:
            return [run(folder, case) for case in cases], pace

    runs, pace = quietly(paced)
    return runs, mean_ms(pace.readings_ms) / reference_ms
