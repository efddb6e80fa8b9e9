"""Decoders beside their authors' own packages, on the same random outputs. For an environment of its own:

    python -m venv peer && peer/bin/pip install -e . rapidocr-onnxruntime rtmlib --no-deps ...
    peer/bin/python tests/bench/decode_peer.py [--json FILE]

Both packages are Apache 2.0 and no dependency of edgert. Prints, for each decoder, how many outputs and things in them
were compared, how far coordinates are apart at most, and whether texts are the same. Exits 1 where a coordinate is off
by more than half a pixel or a text differs. --json as in bench_decoders.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import cv2
import numpy as np
from bench_decoders import keep
from rapidocr_onnxruntime.ch_ppocr_det.utils import DBPostProcess
from rapidocr_onnxruntime.ch_ppocr_rec.utils import CTCLabelDecode
from rtmlib.tools.pose_estimation.post_processings import get_simcc_maximum

from edgert.stages.crop import Geometry
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.poses import SimCC
from edgert.stages.decode.text import CTC, DB

SIDE, TIMES = 640, 200


def page(rng: np.random.Generator) -> np.ndarray:
    """A map of text: turned bars, some of which touch, and noise."""
    sure = rng.uniform(0, 0.25, (SIDE, SIDE)).astype(np.float32)
    for _ in range(40):
        size, center = (rng.uniform(10, 150), rng.uniform(3, 30)), rng.uniform(0, SIDE, 2)
        bar = cv2.boxPoints((center, size, rng.uniform(-90, 90)))
        cv2.fillPoly(sure, [np.rint(bar).astype(np.int32)], float(rng.uniform(0.4, 1)))
    return sure


def boxes() -> tuple[str, int, int, float, bool]:
    """PaddleOCR's boxes are rounded to whole pixels of the image: the image is sixteen times the map, so that does not
    count, and distances are those of the map."""
    worst, same, count = 0.0, True, 0
    theirs = DBPostProcess(0.3, 0.6, 1000, 1.5, "fast", False)
    for seed in range(TIMES):
        sure = page(np.random.default_rng(seed))
        expected, scores = theirs(sure[None, None], (SIDE * 16, SIDE * 16))
        found = Detector(DB(), 0.6, limit=1000)([sure[None]], Geometry(1, 1, 0, 0, (SIDE, SIDE), (0, 0, SIDE, SIDE)))
        order = np.argsort(-np.asarray(scores, np.float32), kind="stable")
        same &= len(found) == len(expected) and np.allclose(found.scores, np.asarray(scores)[order], atol=1e-5)
        if not same:
            break
        assert found.corners is not None
        mine = np.clip(found.corners, 0, SIDE)
        worst = max(worst, float(np.abs(mine - np.asarray(expected)[order] / np.float32(16)).max()))
        count += len(found)
    return "db", TIMES, count, worst, same


def texts() -> tuple[str, int, int, float, bool]:
    characters, worst, same, count = [chr(33 + n) for n in range(95)], 0.0, True, 0
    theirs = CTCLabelDecode(character=list(characters))
    for seed in range(TIMES):
        rng = np.random.default_rng(seed)
        logits = rng.normal(0, 1.5, (80, 97))
        logits[:, 0] += 2
        table = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(np.float32)
        ((text, score),) = theirs(table[None])
        found = CTC(labels=tuple(characters))([table], Geometry(1, 1, 0, 0, (320, 32), (0, 0, 320, 32)))
        same &= found.text == text
        worst, count = max(worst, abs(found.score - score)), count + len(text)
    return "ctc", TIMES, count, worst, same


def poses() -> tuple[str, int, int, float, bool]:
    """Places; rtmlib's score is the mean of both sides', mmpose's and this one the lower."""
    worst = 0.0
    for seed in range(TIMES):
        rng = np.random.default_rng(seed)
        across, down = (rng.normal(0.2, 0.05, (17, 2 * n)).astype(np.float32) for n in (192, 256))
        for point in range(17):
            across[point, rng.integers(384)] += 0.6
            down[point, rng.integers(512)] += 0.5
        places, _ = get_simcc_maximum(across[None].copy(), down[None].copy())
        found = SimCC()([across, down], Geometry(1, 1, 0, 0, (192, 256), (0, 0, 192, 256)))
        worst = max(worst, float(np.abs(found.points[0, :, :2] - places[0] / 2).max()))
    return "simcc", TIMES, 17 * TIMES, worst, True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    file, rows = parser.parse_args().json, [boxes(), texts(), poses()]
    for name, outputs, count, worst, same in rows:
        end = f"at most {worst:.4f} apart   {'same' if same else 'DIFFERENT'}"
        print(f"{name:8}{outputs:5} outputs {count:6} compared   {end}")
        if same and worst <= 0.5:
            keep(file, name, outputs=outputs, equal=outputs, found=count, far_px=worst, overlap=None)
    return 0 if all(same and worst <= 0.5 for *_, worst, same in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
