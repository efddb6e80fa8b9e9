"""The same figures of six shipped pipelines on three boards: planned, simulated, and emulated on this machine.

Frames per second, p50, p99 and watts of a plan's row, of ``edgert simulate`` and of ``edgert run --as``, with drawn
frames in place of cameras and a model that computes nothing. The emulated board's time stands still while this machine
works, so other programs do not matter; it takes a minute or two.

python tests/bench/bench_same_figures.py [--json FILE]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from report import main

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from tests.helpers.shipped_cameras import BOARDS, PIPELINES, WORDS, emulated, planned, shipped, simulated

BAR, FRAMES, FPS = 0.05, 120, 30.0


def measure() -> Iterator[Figure]:
    """How far the simulation and the emulation of each are from the plan, at most."""
    with tempfile.TemporaryDirectory(prefix="edgert-") as folder, pytest.MonkeyPatch.context() as patch:
        for name in PIPELINES:
            file = shipped(name, Path(folder), FRAMES, patch, FPS)
            for board in BOARDS:
                wanted = planned(file, board)
                found = {"simulated": simulated(file, board, FRAMES / FPS), "emulated": emulated(file, board)[0]}
                for how, values in found.items():
                    pairs = zip(WORDS, values, wanted, strict=True)
                    off = {word: abs((value or 0.0) / (want or 1.0) - 1) for word, value, want in pairs}
                    figures = dict(zip(WORDS, values, strict=True)) | {f"{word} off": one for word, one in off.items()}
                    yield Figure(f"{name} on {board}, {how}", max(off.values()), "of it", BAR, n=FRAMES, detail=figures)
        patch.undo()  # leaves the folder


if __name__ == "__main__":
    main(__doc__.splitlines()[0] if __doc__ else "", measure)
