"""Decoders of detection against their authors' own post-processing, on outputs that were made up.

FOLDER is what ``tools/authors_decode.py`` wrote in the authors' environment: outputs, and the authors' answers. An
output agrees where the same objects come in the same order (scores to a millionth; of scores nearer to each other the
order is not asked), of the same class, boxes and corners within half a pixel, masks overlapping by 0.99 or more (those
under 16 pixels: all but one pixel). Exits 1 unless all outputs of all files agree. --json keeps what the file has of
other heads; tests/bench/measured/decoders.json, with those of decode_peer.py, is a table of docs/benchmarks.md.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from edgert.config.model_section import DetectTask
from edgert.runtime.records import Detections
from edgert.stages.crop import Geometry
from edgert.stages.decode.kinds import decoder_for

PIXELS, OVERLAP, SCORE = 0.5, 0.99, 2e-6


def whole(record: Detections, side: int) -> Any:
    """(N, side, side) of the objects' masks."""
    found = np.zeros((len(record), side, side), bool)
    for one, mask in zip(found, record.masks or (), strict=True):
        x1, y1, x2, y2 = (round(value) for value in mask.region)
        one[y1:y2, x1:x2] = mask.mask
    return found


def off(record: Detections, wanted: dict[str, Any], side: int) -> tuple[float, float]:
    """The farthest corner in pixels and the least overlap of masks; infinite where other objects were found."""
    if len(record) != len(wanted["scores"]) or np.abs(record.scores - wanted["scores"]).max(initial=0) > SCORE:
        return np.inf, 0.0
    rows = by_place(record.scores, record.classes, record.boxes)
    others = by_place(record.scores, wanted["classes"], np.clip(wanted["boxes"], 0, side))
    if (record.classes[rows] != wanted["classes"][others]).any():
        return np.inf, 0.0
    far = np.abs(record.boxes[rows] - np.clip(wanted["boxes"], 0, side)[others]).max(initial=0)
    if record.corners is not None:  # round a box, wherever one begins
        apart = np.abs(record.corners[rows][:, :, None] - wanted["corners"][others][:, None]).max(axis=3)
        far = max(far, apart.min(axis=2).max(initial=0))
    if record.masks is None:
        return float(far), 1.0
    one = whole(record, side)[rows]
    other = np.unpackbits(wanted["masks"], axis=-1, count=side).astype(bool)[others]
    shared, either = (one & other).sum(axis=(1, 2)), (one | other).sum(axis=(1, 2))
    return float(far), float(np.where(either - shared <= 1, 1, shared / np.maximum(either, 1)).min(initial=1))


def by_place(scores: Any, classes: Any, boxes: Any) -> Any:
    """An order that equal scores cannot change."""
    step = np.cumsum(np.append(0, np.diff(scores) < -SCORE)) if len(scores) else np.zeros(0)
    return np.lexsort([boxes[:, 1].round(1), boxes[:, 0].round(1), classes, step])


def keep(path: Path | None, name: str, **facts: float | None) -> None:
    """Writes what was seen of a decoder beside what the file holds of others."""
    if path is not None:
        held = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps(dict(sorted((held | {name: facts}).items())), indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.npz"))
    failed = not files
    for file in files:
        with np.load(file) as archive:
            found = {name: archive[name] for name in archive.files}
        facts = json.loads(str(found["facts"]))
        task = DetectTask(detect=facts["decoder"], iou=facts["iou"], score=facts["score"], limit=facts["limit"],
                          options=facts["options"])  # fmt: skip
        decoder, side, bad, objects, far, overlap = decoder_for(task, ()), facts["side"], 0, 0, 0.0, 1.0
        geometry = Geometry(1, 1, 0, 0, (side, side), (0, 0, side, side))
        count = len({name.split("/")[0] for name in found}) - 1
        for index in range(count):
            own = {name.split("/")[1]: value for name, value in found.items() if name.startswith(f"{index}/")}
            outputs = [own[name] for name in sorted(own) if name.startswith("output")]
            record = decoder(outputs, geometry)
            pixels, least = off(record, own, side)
            objects += len(own["scores"])
            if pixels > PIXELS or least < OVERLAP:
                bad += 1
                print(f"  {file.stem} {index}: {len(record)} for {len(own['scores'])}, {pixels:.2g} px, {least:.4f}")
            else:
                far, overlap = max(far, pixels), min(overlap, least)
        failed |= bad > 0
        masks = overlap if "0/masks" in found else None
        keep(options.json, file.stem, outputs=count, equal=count - bad, found=objects, far_px=far, overlap=masks)
        print(
            f"{file.stem:16}{count - bad:4} of {count} outputs, {objects:6} objects, {far:.4f} px, masks {overlap:.4f}"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
