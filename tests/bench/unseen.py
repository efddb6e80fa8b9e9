"""What bench_unseen.py measures of a machine before any pipeline is foretold: networks, stages, scattering times."""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import made
import numpy as np
from bench_cpu_stages import CODE, OBJECTS, SIZES
from check_models import OTHERS, RECIPES
from pace import Pace, mean_ms
from quiet import quietly
from report import DATA
from scipy.optimize import nnls

from edgert.backend import EngineOptions, Session, Tuning
from edgert.backend.ort import OrtBackend
from edgert.backend.ort.cpu import Kernel, kernel_times
from edgert.benchmark import core_profile
from edgert.benchmark.measure import Run, jitter, once, timed
from edgert.board.host import core_accelerators, pinned
from edgert.graph import Model, clean, inputs, load, read, with_shapes
from edgert.jitter import AT, SLOT_MS, Jitter, Quantiles, mean_of, quantiles_of
from edgert.pipeline import Pipeline
from edgert.placement.cost.work import Numbers
from edgert.runtime import Summary
from edgert.runtime.metrics import Percentiles
from scripts.fitting import host

ROOT = Path(__file__).parents[2]
PARTS = "detect: yolox, score: 0.4", "resize: letterbox, color: rgb, mean: 0, std: 255"
PERSON = "embed: l2", "resize: stretch, color: rgb, mean: [123.675, 116.28, 103.53], std: [58.395, 57.12, 57.375]"
NETWORKS = {
    "parts": PARTS,
    "osnet_x0_25_msmt17": PERSON,
    **{name: (task, image) for name, (task, image, _) in {**RECIPES, **OTHERS}.items()},
}
"""Network → its task and its input, as pipeline files have them."""
MEASURED = (
    "resnet50", "parts", "deeplab_v3_mnv2_05", "fastestdet", "mobilenet_v1_025_224", "nanodet_m_320",
    "osnet_x0_25_msmt17", "person_reid_retail_0288", "squeezenet_fp32", "ultraface_rfb_320",
    "yolox_nano_416", "yunet_120x160", "road_segmentation_adas_0001", "mobilenet_v2", "shufflenet_v2_x2_0", "yolov8n",
)  # fmt: skip
BESIDE = (
    "parts", "mobilenet_v1_025_224", "mobilenet_v2_quant", "nanodet_m_320", "osnet_x0_25_msmt17", "squeezenet_fp32",
    "ultraface_rfb_320", "yolox_nano_416",
)  # fmt: skip
"""Networks around which is measured what a stage takes beside them."""
REFERENCE = "fastestdet"
"""Of no pipeline here: tells how fast the machine is now."""
STARTS = 2
"""Of two cameras, and of three, how often; each time, their frames meet or do not, as they began."""
EASY_FPS, EASY_S = 25.0, 3.0
"""Of the other pipelines: a camera's, as stages take longer the longer they rest between frames."""
_PERIOD_S, _SPIN_S = 0.04, 0.1
"""A rest between two runs; longer than threads of ONNX Runtime spin."""
_BRIEF_S = 0.001, 0.004, 0.015
"""Rests after which less is gone from the caches."""
Row = tuple[float, float, float]


def onnx_of(name: str) -> Path:
    """The file of a network."""
    return ROOT / "pipelines/assets/parts.onnx" if name == "parts" else DATA / "models" / f"{name}.onnx"


def static(name: str) -> Model:
    """A network with open sizes of one, cleaned."""
    if name in made.NAMES:
        return made.made(name)
    model = load(onnx_of(name))
    shapes = {one.name: tuple(size if isinstance(size, int) else 1 for size in one.shape) for one in inputs(model)}
    return clean(with_shapes(model, shapes))[0]


@cache
def columns(name: str) -> host.Columns:
    """What the kernels of a network do."""
    return host.columns(static(name))


def input_mp(name: str) -> float:
    """Megapixels of a network's input."""
    shape = [size for size in inputs(load(onnx_of(name)))[0].shape if isinstance(size, int)]
    return float(np.prod(shape)) / 3e6


# A pipeline, and a run of it.


@dataclass(frozen=True)
class Case:
    """A pipeline.

    Attributes:
        models: name in the file → network, and how it is run.
        stages: with sources.
        objects: that a stage of Python puts on each frame.
    """

    name: str
    models: Mapping[str, tuple[str, str]]
    stages: str
    objects: int = 0

    def text(self) -> str:
        """The pipeline file."""
        lines = ["schema: 1", f"name: {self.name}", *(["models:"] if self.models else [])]
        for name, (network, how) in self.models.items():
            task, image = NETWORKS[network]
            lines.append(f"  {name}: {{onnx: {onnx_of(network)}, task: {{{task}}}, input: {{{image}}}, {how}}}")
        return "\n".join([*lines, "stages:", self.stages])


def camera(name: str, size: str, fps: float, seconds: float) -> str:
    """A source that gives prepared frames as a camera does."""
    shape = f"size: {size}, realtime: true, fps: {fps:g}, limit: {round(seconds * fps)}"
    return f"  {name}: {{source: 'python:scene:still', {shape}}}\n"


def boxes(count: int, source: str, name: str = "boxes") -> str:
    """A stage that puts so many objects on each frame, which move."""
    return f"  {name}: {{python: 'scene:Boxes', args: {{count: {count}}}, from: {source}}}\n"


START_S = 1.0
"""Of a run: the first frame of each camera finds nothing in the caches, which of 300 frames is a third of a percent."""


def run(folder: Path, case: Case) -> tuple[Summary, float]:
    """The summary of a real run, its latency without that of :data:`START_S`, and the cores that this process kept
    busy."""
    path = folder / "p.yaml"
    path.write_text(case.text(), encoding="utf-8")
    with Pipeline(path) as pipeline:
        ends = [node.meter.latency for node in pipeline._assembly.nodes if not node.outlets]

        def latencies() -> Any:
            return np.sum([one.counts() for one in ends], axis=0)

        began, started = time.process_time(), time.perf_counter()
        pipeline.start()
        before = 0 if pipeline.wait(START_S) else latencies()
        pipeline.wait()
        cores = (time.process_time() - began) / (time.perf_counter() - started)
        return replace(pipeline.summary(), latency_ms=Percentiles.of(latencies() - before)), cores


def film(folder: Path, path: str, size: str) -> None:
    """Prepared frames as a film."""
    stages = f"  still: {{source: 'python:scene:still', size: {size}, limit: 120}}\n"
    run(folder, Case("film", {}, f"{stages}  make: {{sink: video, from: still, path: {path}, encode: cpu}}\n"))


@contextmanager
def scene(sizes: Sequence[str]) -> Iterator[Path]:
    """A folder, made the current one, with the code of sources; frames of these sizes are prepared."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        os.chdir(name)
        try:
            (Path(name) / "scene.py").write_text(CODE, encoding="utf-8")
            for size in sizes:
                run(
                    Path(name),
                    Case("sizes", {}, camera("still", size, 10, 0.2) + "  end: {sink: 'null', from: still}\n"),
                )
            yield Path(name)
        finally:
            os.chdir(before)


# What is measured of networks.


class Bench:
    """One network, to be timed in rounds.

    A shared machine is slow for moments and for seconds at a time, so the reference is timed in between, and a round's
    times are kept as so many of its runs (``alone``, ``rested``, ``busy``, ``two``, ``two_rested``, and for each of
    :data:`_BRIEF_S` one of ``brief``); medians over the rounds count.
    """

    def __init__(self, name: str) -> None:
        self.name, self.model = name, static(name)
        self.graph = read(self.model)
        self._engine = OrtBackend().compile(self.model, EngineOptions(threads=1))
        self._one, self._two, self._live = self._filled(1), self._filled(2), self._filled(2, "runs")
        self._feeds = {key: value.copy() for key, value in self._one.inputs.items()}
        self.alone, self.rested, self.busy, self.two, self.two_rested = (list[float]() for _ in range(5))
        self.brief = tuple(list[float]() for _ in _BRIEF_S)
        self._rests: list[list[float]] = []
        self.readings_ms: list[float] = []
        self._kernels: list[Sequence[Kernel]] = []
        self._busy: list[list[Run]] = []

    def _filled(self, threads: int, spinning: Literal["auto", "runs"] = "auto") -> Session:
        options = EngineOptions(threads=threads, tuning=Tuning(spinning=spinning))
        session = OrtBackend().compile(self.model, options).session()
        random = np.random.default_rng(0)
        for tensor in session.inputs.values():
            tensor[...] = random.random(tensor.shape).astype(tensor.dtype)
        return session

    def mark(self) -> Callable[[], None]:
        """Gives what forgets whatever is measured from now on."""
        kept = [(one, len(one)) for one in (*vars(self).values(), *self.brief) if isinstance(one, list)]

        def forget() -> None:
            for one, count in kept:
                del one[count:]

        return forget

    def turn(self, reference: Bench, runs: int = 9) -> None:
        """A round: its kernels, alone, after rests, with company, and on two threads."""
        cores = core_accelerators()
        for mine, core in cores.items():
            with pinned(core):
                self._kernels.append(kernel_times(self.model, self._feeds, runs))
                self.alone.append(self._against(reference, self.second_ms, runs))
                self._rests.append([])
                self.rested.append(self._against(reference, self._after_rest_ms, runs))
                for rest_s, found in zip(_BRIEF_S, self.brief, strict=True):
                    found.append(self._against(reference, partial(self._after_ms, rest_s), runs))
                with core_profile.company(self._engine, [at for name, at in cores.items() if name != mine]):
                    self._busy.append(timed(self._one.run, 3 * runs))
            self.busy.append(mean_ms([one.cpu_ms for one in self._busy[-1]]) / mean_ms(self.readings_ms[-2 * runs :]))
        self.two.append(self._against(reference, self._second_on_two_ms, runs))
        self.two_rested.append(self._against(reference, self._rested_on_two_ms, runs))

    def _against(self, reference: Bench, take_ms: Callable[[], float], runs: int) -> float:
        """What is taken, in runs of the reference right before."""
        pairs = [(reference.second_ms(), take_ms()) for _ in range(runs)]
        self.readings_ms += [reading_ms for reading_ms, _ in pairs]
        return mean_ms([taken_ms for _, taken_ms in pairs]) / mean_ms(self.readings_ms[-runs:])

    def second_ms(self) -> float:
        """Processor time of a run right after another one."""
        self._one.run()
        return once(self._one.run).cpu_ms

    def _second_on_two_ms(self) -> float:
        self._two.run()
        return once(self._two.run).wall_ms

    def _rested_on_two_ms(self) -> float:
        time.sleep(_PERIOD_S)
        return once(self._live.run).wall_ms

    def _after_rest_ms(self) -> float:
        time.sleep(_PERIOD_S)
        run = once(self._one.run)
        self._rests[-1].append(run.wall_ms)
        return run.cpu_ms

    def _after_ms(self, rest_s: float) -> float:
        self._one.run()
        time.sleep(rest_s)
        return once(self._one.run).cpu_ms

    def spun_ms(self) -> float:
        """Processor time of the whole process after a run on two threads, until it rests."""
        found = []
        for _ in range(5):
            self._two.run()
            began = time.process_time()
            time.sleep(_SPIN_S)
            found.append(1e3 * (time.process_time() - began))
        return statistics.median(found)

    def known(self, reference_ms: float) -> Known:
        """All of it. What :attr:`alone` and the like count in runs of the reference is given in milliseconds."""
        alone, rested = statistics.median(self.alone), statistics.median(self.rested)
        return Known(
            whole_ms=reference_ms * alone,
            kernels_ms=self.found(reference_ms).kernels_ms,
            rested_ms=reference_ms * max(rested - alone, 0.0),
            company=max(1.0, statistics.median(self.busy) / alone),
            two=statistics.median(self.two) / alone,
            two_rested=statistics.median(self.two_rested) / rested,
            jitter=self.jitter,
            rested_jitter=quantiles_of(self.rests_ms),
        )

    @property
    def jitter(self) -> Quantiles:
        """Of its runs with company."""
        return jitter(self._busy)

    @property
    def rests_ms(self) -> Sequence[Sequence[float]]:
        """Runs after rests, round after round; by the clock on the wall."""
        return self._rests

    def found(self, reference_ms: float) -> host.Timed:
        """Its kernels, and the whole."""
        found, rounds_ms = columns(self.name), [{one.name: one.time_ms for one in kernels} for kernels in self._kernels]
        times_ms = [statistics.median(one[name] for one in rounds_ms) for name in found.names]
        return host.Timed(found, np.array(times_ms), reference_ms * statistics.median(self.alone))


# What is measured of stages.


@dataclass
class Others:
    """One round of other pipelines.

    Attributes:
        stages: kind → (1, megapixels, objects) → milliseconds.
        brisk: the same of those stages that a brisk pipeline has.
        infer: network → (1, megapixels, those of its input) → milliseconds beside the network.
        jitters: kind → those of its threads.
        late: of threads.
        hand_over_ms: of each thread, what passing a result on takes.
        gaps_ms: between the first frames of one camera and the next.
    """

    stages: dict[str, dict[Row, float]] = field(default_factory=lambda: defaultdict(dict))
    brisk: dict[str, dict[Row, float]] = field(default_factory=lambda: defaultdict(dict))
    infer: dict[str, dict[Row, float]] = field(default_factory=lambda: defaultdict(dict))
    jitters: dict[str, list[Quantiles]] = field(default_factory=lambda: defaultdict(list))
    late: list[Quantiles] = field(default_factory=list)
    hand_over_ms: list[float] = field(default_factory=list)
    gaps_ms: list[float] = field(default_factory=list)


OTHER = """  track: {track: bytetrack, from: boxes}
  draw: {draw: [boxes, labels], from: track}
  trails: {draw: [boxes, labels, trails, stats], from: draw}
  images: {sink: images, from: trails, path: other}
  jsonl: {sink: jsonl, from: track, path: other.jsonl}
"""


OUTLETS = {"still": 1, "boxes": 1, "track": 2, "draw": 1, "trails": 1}
"""Stage of these → how many listen to it."""
BRISK_FPS = 200.0
BRISK = """  track: {track: bytetrack, from: boxes}
  jsonl: {sink: jsonl, from: track, path: other.jsonl}
"""
"""What keeps up with as many frames: what is used that often stays in the caches, and takes less time."""


def others(folder: Path, reference_ms: float) -> Others:
    """Other pipelines, at an easy rate: every kind of stage in two sizes with few objects and many; decoding; and what
    is done beside networks, by a backend that computes nothing.

    Args:
        reference_ms: the reference's run, for which the times are given.
    """
    found = Others()
    for width, height in SIZES:
        megapixels, size = width * height / 1e6, f"{width}x{height}"
        still = camera("still", size, EASY_FPS, EASY_S)
        for objects in OBJECTS:
            summary, pace = _watched(folder, Case("other", {}, still + boxes(objects, "still") + OTHER), reference_ms)
            for name, stage in summary.stages.items():
                found.stages[name][1.0, megapixels, float(objects)] = stage.busy_ms_per_result / pace
                if name != "still":
                    found.jitters[name].append(summary.simulation[name].jitter)
                    found.late.append(summary.simulation[name].wakeup_latency_ms)
                if outlets := OUTLETS.get(name, 0):
                    ms = stage.busy_ms_per_result * stage.wait_out_percent / stage.busy_percent
                    found.hand_over_ms.append(ms / pace / outlets)
            still = camera("still", size, BRISK_FPS, EASY_S)
            summary, pace = _watched(folder, Case("brisk", {}, still + boxes(objects, "still") + BRISK), reference_ms)
            for name, stage in summary.stages.items():
                found.brisk[name][1.0, megapixels, float(objects)] = stage.busy_ms_per_result / pace
            still = camera("still", size, EASY_FPS, EASY_S)
        froms = ["still", *BESIDE]
        chain = "".join(f"  {name}: {{infer: {name}, from: {source}}}\n" for source, name in pairwise(froms))
        models = {name: (name, "backend: 'null'") for name in BESIDE}
        text = f"{still}{chain}  end: {{sink: 'null', from: {froms[-1]}}}\n"
        summary, pace = _watched(folder, Case("beside", models, text), reference_ms)
        for name in BESIDE:
            found.infer[name][1.0, megapixels, input_mp(name)] = summary.stages[name].busy_ms_per_result / pace
        for number in (2, 3) * STARTS:
            names = [f"camera{n}" for n in range(number)]
            text = "".join(camera(name, size, EASY_FPS, 1.0) for name in names)
            text += f"  look: {{infer: look, from: [{', '.join(names)}]}}\n  end: {{sink: 'null', from: look}}\n"
            began = run(folder, Case("starts", {"look": (REFERENCE, "backend: ort, threads: 1")}, text))[0].simulation
            firsts_ms = sorted(began[name].first_result_ms or 0.0 for name in names)
            found.gaps_ms += [later - earlier for earlier, later in pairwise(firsts_ms)]
        film(folder, f"{size}.mp4", size)
        text = f"  decode: {{source: {size}.mp4, decode: cpu}}\n  end: {{sink: 'null', from: decode}}\n"
        summary, pace = _watched(folder, Case("decode", {}, text), reference_ms)
        found.stages["decode"][1.0, megapixels, 0.0] = summary.stages["decode"].busy_ms_per_result / pace
    return found


def _watched(folder: Path, case: Case, reference_ms: float) -> tuple[Summary, float]:
    """A run's summary, and how many times as long everything took."""

    def paced() -> tuple[Summary, Pace]:
        with Pace() as pace:
            return run(folder, case)[0], pace

    summary, pace = quietly(paced)
    return summary, mean_ms(pace.readings_ms) / reference_ms


# All of it.


@dataclass(frozen=True)
class Known:
    """What is known of a network: measured, or foretold from others.

    Attributes:
        whole_ms: of a run that follows another at once, on one thread.
        kernels_ms: of each kernel of such a run.
        rested_ms: what one takes more that does not.
        company: how many times as long it takes with all cores busy.
        two: on two threads, the time on one.
        two_rested: the same beside a camera.
        jitter: of its runs.
        rested_jitter: of those that do not follow another at once.
    """

    whole_ms: float
    kernels_ms: Numbers
    rested_ms: float
    company: float
    two: float
    two_rested: float
    jitter: Quantiles
    rested_jitter: Quantiles

    def serial(self, is_rested: bool) -> float:
        """Part of a run on one thread that two do not share."""
        return max(2 * (self.two_rested if is_rested else self.two) - 1, 0.0)


@dataclass(frozen=True)
class Machine:
    """What was measured, without any pipeline that is asked for.

    Attributes:
        networks: with the times of their kernels.
        company: how many times as long a network takes with all cores busy.
        rested: milliseconds that a run takes more that does not follow another at once, at least and for each node.
        brief: after each of :data:`_BRIEF_S`, what part of that it takes more.
        two: of a run on two threads, the time on one.
        two_rested: the same beside a camera: after a rest, and the second of them sleeps from one run to the next.
        spin_ms: beside files, for how long the second of two threads keeps its core busy after a run.
        stages: kind → milliseconds a frame, a megapixel and an object.
        brisk: the same where frames follow one another at :data:`BRISK_FPS` and more, of some kinds.
        infer: network → (1, megapixels of a frame, of the network's input) and what a stage takes beside the network.
        run_jitter: of a network's runs.
        rested_jitter: of those that do not follow another at once.
        jitters: kind → of a stage.
        wakeup_ms: of stages.
        hand_over_ms: what passing a result on takes a thread, for each that listens.
        fetch_ms: on average, how long an idle core leaves a thread waiting for another core.
        gaps_ms: as they were seen, between the first frames of one camera and the next.
        reference_ms: of one run of the reference, to which all the others belong.
        pace: how many times as long everything takes now.
        slow_phases: how far it is from that, slot after slot of :data:`edgert.jitter.SLOT_MS`.
        profiled: what each network that was measured takes itself.
    """

    networks: Mapping[str, host.Timed]
    company: float
    rested: tuple[float, float]
    brief: tuple[float, ...]
    two: float
    two_rested: float
    spin_ms: float
    stages: Mapping[str, Sequence[float]]
    brisk: Mapping[str, Sequence[float]]
    infer: Mapping[str, Mapping[Row, float]]
    run_jitter: Quantiles
    rested_jitter: Quantiles
    jitters: Mapping[str, Quantiles]
    wakeup_ms: Quantiles
    hand_over_ms: float
    reference_ms: float
    fetch_ms: float = 0.0
    gaps_ms: tuple[float, ...] = (0.0,)
    pace: float = 1.0
    slow_phases: tuple[float, ...] = ()
    profiled: Mapping[str, Known] = field(default_factory=dict)
    _rates: dict[frozenset[str], dict[str, float]] = field(default_factory=dict)

    def network(self, name: str, without: frozenset[str]) -> Known:
        """A network at the present pace, foretold from others; one that is not left out, as it was measured itself."""
        if name not in without:
            one = self.profiled[name]
            times_ms = self.pace * one.whole_ms, self.pace * one.kernels_ms, self.pace * one.rested_ms
            return replace(one, whole_ms=times_ms[0], kernels_ms=times_ms[1], rested_ms=times_ms[2])
        kernels_ms, (at_least, of_node) = self.kernels_ms(columns(name), without), self.rested
        rested_ms = at_least + of_node * len(read(static(name)).nodes)
        threads, jitters = (self.two, self.two_rested), (self.run_jitter, self.rested_jitter)
        return Known(float(kernels_ms.sum()), kernels_ms, rested_ms, self.company, *threads, *jitters)

    def cold(self, rest_ms: float) -> float:
        """What part of :attr:`rested` a run takes more after so long a rest: between those that were measured, by its
        logarithm."""
        rests = [math.log(1e3 * one) for one in (*_BRIEF_S, _PERIOD_S)]
        return float(np.interp(math.log(rest_ms), rests, (*self.brief, 1.0))) if rest_ms > 0 else 0.0

    def paced(self, readings_ms: Sequence[float], period_s: float) -> Machine:
        """The same while the reference network takes that long: others share its cores' clock and caches.

        Everything takes longer by the mean of what was read so often, and by how far each reading is from it while it
        is the last one.
        """
        usual_ms = mean_ms(readings_ms)
        pace, slots = usual_ms / self.reference_ms, round(1e3 * period_s / SLOT_MS)
        return replace(
            self,
            rested=(pace * self.rested[0], pace * self.rested[1]),
            stages={kind: [pace * one for one in numbers] for kind, numbers in self.stages.items()},
            brisk={kind: [pace * one for one in numbers] for kind, numbers in self.brisk.items()},
            hand_over_ms=pace * self.hand_over_ms,
            pace=pace,
            slow_phases=tuple(one_ms / usual_ms for one_ms in readings_ms for _ in range(slots)),
        )

    def jitter_by(self, quantiles: Quantiles) -> Jitter:
        """How times scatter that scattered so while the machine's pace was one."""
        mean = mean_of(quantiles)
        return Jitter(quantiles, tuple(one / mean for one in self.slow_phases))

    @property
    def fetch_quantiles_ms(self) -> Quantiles:
        """At each of :data:`edgert.jitter.AT`: ticks of a core come at any moment, and not each looks."""
        longest = 1 - 1e-3
        return tuple(-self.fetch_ms * math.log(1 - min(max(at, 1e-3), longest)) for at in AT) if self.fetch_ms else ()

    def kernels_ms(self, columns: host.Columns, without: frozenset[str]) -> Numbers:
        """Of every kernel of a network, by rates that are fitted to others."""
        if without not in self._rates:
            self._rates[without] = host.fit([one for name, one in self.networks.items() if name not in without])
        return self.pace * host.predict_ms(columns, self._rates[without])

    def beside_ms(self, row: Row, without: frozenset[str]) -> float:
        """What a stage takes beside its network, by what it took beside others."""
        known = [one for name, own in self.infer.items() if name not in without for one in own.items()]
        return self.pace * float(np.dot(fitted(dict(known)), row))


def measured(folder: Path, count: int) -> Machine:
    """In so many rounds. Minutes."""
    benches = {name: Bench(name) for name in MEASURED}
    reference, made = Bench(REFERENCE), list(benches.values())
    for _ in range(count):
        for bench in made:
            quietly(partial(bench.turn, reference), bench.mark())
    reference_ms = mean_ms([one for bench in made for one in bench.readings_ms])
    found = [others(folder, reference_ms) for _ in range(count)]
    more = [reference_ms * (statistics.median(one.rested) - statistics.median(one.alone)) for one in made]
    brief = [
        max(statistics.median(sum(one.brief[at]) / sum(one.alone) - 1 for one in made), 0.0)
        for at in range(len(_BRIEF_S))
    ]
    whole = max(statistics.median(sum(one.rested) / sum(one.alone) - 1 for one in made), 1e-6)
    nodes = np.array([[1.0, len(one.graph.nodes)] for one in made])
    at_least, of_node = map(float, nnls(nodes, np.maximum(more, 0.0))[0])
    return Machine(
        networks={name: bench.found(reference_ms) for name, bench in benches.items()},
        company=max(1.0, statistics.median(statistics.median(one.busy) / statistics.median(one.alone) for one in made)),
        rested=(at_least, of_node),
        brief=tuple(min(one / whole, 1.0) for one in brief),
        two_rested=statistics.median(statistics.median(one.two_rested) / statistics.median(one.rested) for one in made),
        two=statistics.median(statistics.median(one.two) / statistics.median(one.alone) for one in made),
        spin_ms=statistics.median(one.spun_ms() for one in made),
        stages={kind: fitted(_usual([one.stages[kind] for one in found])) for kind in found[0].stages},
        brisk={kind: fitted(_usual([one.brisk[kind] for one in found])) for kind in found[0].brisk},
        infer={name: _usual([one.infer[name] for one in found]) for name in BESIDE},
        run_jitter=middle([one.jitter for one in made]),
        rested_jitter=quantiles_of([rests_ms for one in made for rests_ms in one.rests_ms]),
        jitters={kind: middle([one for round_ in found for one in round_.jitters[kind]]) for kind in found[0].jitters},
        wakeup_ms=middle([one for round_ in found for one in round_.late]),
        hand_over_ms=statistics.median(ms for round_ in found for ms in round_.hand_over_ms),
        reference_ms=reference_ms,
        gaps_ms=tuple(gap_ms for round_ in found for gap_ms in round_.gaps_ms),
        profiled={name: bench.known(reference_ms) for name, bench in benches.items()},
    )


def fitted(taken: Mapping[Row, float]) -> list[float]:
    """Numbers, none below zero, with the least relative errors."""
    times = np.array(list(taken.values()))
    solved, _ = nnls(np.array(list(taken)) / times[:, None], np.ones(len(times)))
    return [float(one) for one in solved]


def _usual(rounds: Sequence[Mapping[Row, float]]) -> dict[Row, float]:
    return {row: max(statistics.median(one[row] for one in rounds), 1e-3) for row in rounds[0]}


def middle(found: Sequence[Quantiles]) -> Quantiles:
    """The median of each quantile, over those that have any."""
    some = [one for one in found if one]
    return tuple(np.median(np.array(some), axis=0).tolist()) if some else ()
