"""What ``edgert bench`` measures; how long until something happens is measured in fresh processes."""

import importlib.metadata
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from edgert.benchmark.measure import Figure, wall_ms
from edgert.benchmark.overhead import engine_speed, growth, hop, overhead
from edgert.benchmark.video_loop import preprocess_cost, preprocess_error, write_scene
from edgert.board.host import core_count
from edgert.config import InferStage, load_pipeline
from edgert.errors import ConfigError

CLIP_FRAMES = 90


def bench(target: Path, quick: bool = False) -> Iterator[Figure]:
    """Figures one by one, as they are taken.

    Only exact figures keep their bars: times, memory and sizes of packages are those of this machine, for which
    there is no bar. ``make bench`` judges all of them.

    Args:
        target: an ONNX model: its speed alone, by threads. A pipeline: what edgert adds to each of its models, and
            what edgert itself costs: hops, growth, start-up, and video decoding beside OpenCV's.
        quick: a third of the rounds.

    Raises:
        EdgertError: the model or pipeline is wrong.
    """
    yield from (figure if figure.is_exact else replace(figure, bar=None) for figure in _measured(target, quick))


def _measured(target: Path, quick: bool) -> Iterator[Figure]:
    if target.suffix == ".onnx":
        yield from (engine_speed(target, threads) for threads in sorted({1, core_count()}))
        return
    rounds = 3 if quick else 9
    models = load_pipeline(target).config.models
    if not models:
        raise ConfigError(f"{target} has no models", why="there is nothing to compare a pipeline with")
    for model in models.values():
        yield overhead(model, rounds, bar=None)
    yield hop(rounds)
    yield from growth()
    with tempfile.TemporaryDirectory(prefix="edgert-") as folder:
        clip = write_scene(Path(folder) / "scene.mp4", 1920, 1080, CLIP_FRAMES)
        yield from preprocess_cost(clip, CLIP_FRAMES, rounds=rounds)
        yield preprocess_error(clip)
    yield from startup(target, rounds)


# Start-up: how long until something happens, and how much is there before it does.

_EVERYTHING = "import edgert.pipeline, av, onnx, onnxruntime"
_RSS = "from edgert.meters import peak_rss_bytes; print(peak_rss_bytes() / 2**20)"


def startup(pipeline: Path, rounds: int = 5) -> list[Figure]:
    """Import, help, first result, resident memory and install size.

    Args:
        pipeline: a pipeline whose first result is waited for, from a cold process with a warm cache.
    """
    return [
        _process("import edgert", ["-c", "import edgert"], 300.0, rounds, less=["-c", "pass"]),
        _process("edgert --help", ["-m", "edgert", "--help"], 300.0, rounds),
        first_result(pipeline, rounds),
        resident(rounds),
        *installed(),
    ]


def first_result(pipeline: Path, rounds: int = 5) -> Figure:
    """Seconds from the start of the process to the first result of the pipeline, the engine cache being warm."""
    code = (
        "import sys, edgert\n"
        f"with edgert.Pipeline({str(pipeline)!r}) as pipeline:\n"
        "    next(pipeline.results(sys.argv[1], timeout=60))\n"
    )
    stages = load_pipeline(pipeline).config.stages
    stage = next(name for name, stage in stages.items() if isinstance(stage, InferStage))
    with tempfile.TemporaryDirectory() as folder:  # sinks write relative to where they are run
        run = [sys.executable, "-c", code, stage]
        subprocess.run(run, cwd=folder, check=True)  # noqa: S603 - our own interpreter; fills the cache
        samples = []
        for _ in range(rounds):
            started = perf_counter()
            process = subprocess.run(run, cwd=folder, check=True)  # noqa: S603
            samples.append(perf_counter() - started)
            assert process.returncode == 0
    return Figure(f"start to first result and back, {pipeline.stem}", statistics.median(samples), "s", 2.0, n=rounds)


def resident(rounds: int = 3) -> Figure:
    """Peak resident memory once everything a pipeline uses is imported and no model is loaded."""
    samples = [float(_output(["-c", f"{_EVERYTHING}; {_RSS}"])) for _ in range(rounds)]
    return Figure("resident memory before a model", statistics.median(samples), "MiB", 150.0, n=rounds)


def installed() -> list[Figure]:
    """Packages that edgert brings when it is installed without extras, and their size on disk, in this environment."""
    names = _needed("edgert")
    size = sum(_size_bytes(name) for name in names)
    return [
        Figure("packages installed", len(names), "packages", 25.0, detail={"names": sorted(names)}),
        Figure("installed size", size / 1e6, "MB", 460.0),
    ]


def _process(name: str, arguments: list[str], bar_ms: float, rounds: int, less: list[str] | None = None) -> Figure:
    def run(what: list[str]) -> float:
        return wall_ms(lambda: _output(what))

    run(arguments)  # byte-compiles
    samples = [run(arguments) - (run(less) if less else 0.0) for _ in range(rounds)]
    return Figure(name, statistics.median(samples), "ms", bar_ms, n=rounds)


def _output(arguments: list[str]) -> str:
    run = [sys.executable, *arguments]
    return subprocess.run(run, check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own interpreter


def _needed(package: str, found: set[str] | None = None) -> set[str]:
    """A package and all that it requires, without extras."""
    found = set() if found is None else found
    key = re.sub(r"[-_.]+", "-", package).lower()
    if key in found:
        return found
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:  # left out by a marker for another system or Python
        return found
    found.add(key)
    for requirement in distribution.requires or ():
        if "extra ==" not in requirement:
            match = re.match(r"[A-Za-z0-9._-]+", requirement)
            assert match is not None, requirement
            _needed(match[0], found)
    return found


def _size_bytes(package: str) -> int:
    distribution = importlib.metadata.distribution(package)
    editable = json.loads(distribution.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable")
    if editable:
        home = Path(__file__).parent.parent
        return sum(path.stat().st_size for path in home.rglob("*.py"))
    paths = (Path(str(distribution.locate_file(file))) for file in distribution.files or ())
    return sum(path.stat().st_size for path in paths if path.is_file())
