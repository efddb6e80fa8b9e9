"""The authors' own ByteTrack and BoT-SORT, from checkouts of their repositories, for comparison alone.

    git clone https://github.com/ifzhang/ByteTrack
    git clone https://github.com/NirAharon/BoT-SORT
    pip install lap cython_bbox scipy

What their trackers import and do not need here (PyTorch, matplotlib, a re-identification network) is left out, and
names that NumPy has dropped since are given back.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.helpers.tracking import F32, I64

Step = Callable[[F32, F32], I64]
"""Boxes and scores of a frame → the number of each detection; -1 for none."""


def authors(name: str, checkout: Path, rate_hz: float = 30.0) -> Step:
    """A fresh tracker ("bytetrack" or "botsort") with its published settings, without camera motion and looks."""
    tracker = _made(name, checkout, rate_hz)

    def step(boxes: F32, scores: F32) -> I64:
        rows = np.column_stack((boxes, scores)).astype(np.float64)
        found = tracker.update(rows, (1, 1), (1, 1)) if name == "bytetrack" else tracker.update(rows, None)
        tracks = [one for one in found if one.is_activated and one.frame_id == tracker.frame_id]
        return _rows(boxes, scores, tracks)

    return step


def _rows(boxes: F32, scores: F32, tracks: list[Any]) -> I64:
    """Which detection each track took: the nearest box among those of the track's score."""
    ids = np.full(len(boxes), -1, np.int64)
    for one in tracks:
        places = np.abs(boxes - one.tlbr).sum(axis=1) + 1e6 * (np.abs(scores - one.score) > 1e-6)
        ids[int(places.argmin())] = one.track_id
    return ids


def _made(name: str, checkout: Path, rate_hz: float) -> Any:
    for alias in ("float", "int"):
        setattr(np, alias, getattr(np, alias, {"float": float, "int": int}[alias]))
    for module in ("torch", "torch.nn", "torch.nn.functional", "matplotlib", "matplotlib.pyplot", "fast_reid"):
        sys.modules.setdefault(module, ModuleType(module))
    stub = ModuleType("fast_reid.fast_reid_interfece")
    stub.__dict__["FastReIDInterface"] = object
    sys.modules.setdefault(stub.__name__, stub)
    sys.path.insert(0, str(checkout))
    try:
        if name == "bytetrack":
            _bare_package("yolox", checkout / "yolox")
            from yolox.tracker import byte_tracker

            byte_tracker.BaseTrack._count = 0
            settings = SimpleNamespace(track_thresh=0.6, track_buffer=30, match_thresh=0.8, mot20=False)
            return byte_tracker.BYTETracker(settings, rate_hz)
        from tracker import bot_sort

        limits = {"track_high_thresh": 0.6, "track_low_thresh": 0.1, "new_track_thresh": 0.7, "match_thresh": 0.8}
        others = {"proximity_thresh": 0.5, "appearance_thresh": 0.25, "with_reid": False, "cmc_method": "none"}
        named = {"track_buffer": 30, "mot20": False, "name": "", "ablation": False}
        return bot_sort.BoTSORT(SimpleNamespace(**limits, **others, **named), rate_hz)
    finally:
        sys.path.remove(str(checkout))


def _bare_package(name: str, folder: Path) -> None:
    """A package whose ``__init__`` is not run: it would import a whole training framework."""
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package


def dets(folder: Path) -> list[tuple[F32, F32]]:
    rows: npt.NDArray[np.float64] = np.loadtxt(folder / "det" / "det.txt", delimiter=",")
    found = []
    for frame in range(1, int(info(folder, "seqLength")) + 1):
        own = rows[rows[:, 0] == frame]
        boxes = np.concatenate((own[:, 2:4], own[:, 2:4] + own[:, 4:6]), axis=1)
        found.append((boxes.astype(np.float32), own[:, 6].astype(np.float32)))
    return found


def info(folder: Path, key: str) -> float:
    lines = (folder / "seqinfo.ini").read_text().splitlines()
    return float(next(line.partition("=")[2] for line in lines if line.startswith(f"{key}=")))
