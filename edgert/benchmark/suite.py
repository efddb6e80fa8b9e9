"""What ``edgert bench`` measures."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from edgert.benchmark.measure import Figure
from edgert.benchmark.overhead import engine_speed, growth, hop, overhead
from edgert.benchmark.startup import startup
from edgert.benchmark.video_loop import preprocess_cost, preprocess_error, write_scene
from edgert.board.host import core_count
from edgert.config import load_pipeline
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
