"""Inference on tiles of a frame, for small objects, and merging of the tiles' boxes.

Tiles are views of the frame; no pixel is copied. Boxes of all tiles are merged as in slicing-aided inference: greedy
non-maximum merging by the intersection over the smaller box. Source: F. C. Akyon et al., "Slicing Aided Hyper Inference
and Fine-tuning for Small Object Detection", ICIP 2022, arXiv:2202.06934; github.com/obss/sahi, postprocess.

Two more rules keep overlapping objects apart. Boxes of one tile are different objects. A box inside another is a part
of it only if its tile cuts it off.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from edgert.config.stages import TileConfig
from edgert.errors import StageError
from edgert.runtime import Detections, Frame, Result
from edgert.runtime.frame import origin_of
from edgert.stages.decode.detection import Bool, Index, Overlap, suppress
from edgert.stages.infer import Infer, Inference

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
_SEAM_PX, _SEAM_PART = 2.0, 0.01
"""Distance to the edge of its tile, in pixels or parts of the tile, up to which a box counts as cut off."""


def tiles_of(width: int, height: int, config: TileConfig) -> list[tuple[int, int, int, int]]:
    """Return left, top, right, bottom of each tile, row by row, then of the complete frame if configured."""
    (columns, rows), overlap = config.grid, config.overlap
    across, down = (list(_spans(size, count, overlap)) for size, count in ((width, columns), (height, rows)))
    found = [(left, top, right, bottom) for top, bottom in down for left, right in across]
    return [*found, (0, 0, width, height)] if config.count > len(found) else found


def _spans(size: int, count: int, overlap: float) -> Iterator[tuple[int, int]]:
    """Yield start and end of ``count`` equal parts, each overlapping the next by the same fraction."""
    length = size / (count - (count - 1) * overlap)
    for number in range(count):
        start = number * length * (1 - overlap)
        yield round(start), min(round(start + length), size)


class InferTiles(Infer):
    """Stage that runs a detector on tiles of every ``every``-th frame, and adds one merged record."""

    def __init__(
        self, name: str, inference: Inference, config: TileConfig, every: int = 1, agnostic: bool = False
    ) -> None:
        super().__init__(name, inference, every)
        self._config, self._agnostic = config, agnostic

    def process(self, result: Result) -> Result:
        frame = result.frame
        if frame.index % self.every:
            return result
        places = tiles_of(frame.width, frame.height, self._config)
        crops = [frame.crop(*place) for place in places]
        found = cast("list[Detections]", self._run_crops(crops))
        return result.with_output(self.name, merge_tiles(found, crops, frame, self._config, self._agnostic))


def merge_tiles(
    found: Sequence[Detections], tiles: Sequence[Frame], frame: Frame, config: TileConfig, agnostic: bool = False
) -> Detections:
    """Return the boxes of all tiles as one record of the frame, best score first.

    Raises StageError: the records are not detections, or have masks.
    """
    first = found[0]
    has_masks = isinstance(first, Detections) and any(one.masks is not None for one in found)
    if not isinstance(first, Detections) or has_masks:
        raise StageError(
            f"tiles of {type(first).__name__} cannot be merged{' with masks' if has_masks else ''}",
            fix="use a model for detect without masks, or leave tiles: out",
        )
    boxes, scores, classes = (
        np.concatenate([getattr(one, name) for one in found]) for name in ("boxes", "scores", "classes")
    )
    seen = np.repeat(np.int64(1) << np.arange(len(found)), [len(one) for one in found])
    cut = np.concatenate([_cut_off(one.boxes, part, frame) for one, part in zip(found, tiles, strict=True)])
    pieces = Pieces(boxes, scores, np.zeros_like(classes) if agnostic else classes, seen, cut)
    kept, together = merge_pieces(pieces, config.match, grows=config.merge == "nmm" and first.corners is None)
    turned = (
        None if first.corners is None else np.concatenate([one.corners for one in found if one.corners is not None])
    )
    points = None if first.points is None else np.concatenate([one.points for one in found if one.points is not None])
    return type(first)(
        together,
        scores[kept],
        classes[kept],
        first.labels,
        corners=None if turned is None else turned[kept],
        points=None if points is None else points[kept],
        names=first.names,
    )


def _cut_off(boxes: F32, tile: Frame, frame: Frame) -> Bool:
    """Return (N,) whether a box ends at an edge of its tile that is not an edge of the frame."""
    x, y = origin_of(tile)
    low, high = np.array((x, y), np.float32), np.array((x + tile.width, y + tile.height), np.float32)
    ends = np.array((origin_of(frame)[0] + frame.width, origin_of(frame)[1] + frame.height), np.float32)
    near = np.maximum(_SEAM_PX, _SEAM_PART * (high - low))
    starts = (boxes[:, :2] <= low + near) & (low > np.array(origin_of(frame)))
    stops = (boxes[:, 2:] >= high - near) & (high < ends)
    cut: Bool = (starts | stops).any(axis=1)
    return cut


class Pieces(NamedTuple):
    """N boxes from all tiles, of which several may show one object.

    Attributes:
        boxes, scores, classes: as in :class:`~edgert.runtime.Detections`.
        tiles: (N,) bit set of the tiles that a box comes from.
        cut: (N,) whether the box's tile cuts it off.
    """

    boxes: F32
    scores: F32
    classes: I32
    tiles: npt.NDArray[np.int64]
    cut: Bool


def merge_pieces(pieces: Pieces, match: float, grows: bool) -> tuple[Index, F32]:
    """Return the rows of every object's best box, best score first, and (K, 4) merged boxes.

    A grown box may overlap boxes that its parts did not, so merging repeats until nothing changes.

    Args:
        pieces: boxes of all tiles.
        match: lowest overlap of two boxes of one object.
        grows: whether a merged box is the hull of its parts; else it is the best one.
    """
    rows = np.arange(len(pieces.scores))
    while True:
        kept, owner = find_owners(pieces, match)
        boxes, tiles, cut = pieces.boxes[kept], pieces.tiles[kept], pieces.cut[kept]
        if grows:
            parts = (owner >= 0).nonzero()[0]
            into = owner[parts]
            np.minimum.at(boxes[:, :2], into, pieces.boxes[parts, :2])
            np.maximum.at(boxes[:, 2:], into, pieces.boxes[parts, 2:])
            np.bitwise_or.at(tiles, into, pieces.tiles[parts])
            np.logical_and.at(cut, into, pieces.cut[parts])
        rows = rows[kept]
        if not grows or len(kept) == len(owner):
            return rows, boxes
        pieces = Pieces(boxes, pieces.scores[kept], pieces.classes[kept], tiles, cut)


def find_owners(pieces: Pieces, match: float) -> tuple[Index, Index]:
    """Return the rows that survive greedy merging, best score first, and each box's position among these.

    The position is -1 for a box without a survivor.
    """
    same = _overlap_rule(pieces)
    everything = np.arange(len(pieces.scores))
    kept = suppress(pieces.boxes, pieces.scores, pieces.classes, match, len(everything), same)
    if not len(kept):
        return kept, everything
    over = same(pieces.boxes, pieces.classes, kept, everything, match)
    owner = over.argmax(axis=0)  # the best comes first
    owner[~over.any(axis=0)] = -1  # beyond the candidates of `suppress`
    owner[kept] = np.arange(len(kept))
    return kept, owner


def _overlap_rule(pieces: Pieces) -> Overlap:
    """Return the test whether two boxes of different tiles show one object."""
    sides, tiles, cut = np.ascontiguousarray(pieces.boxes.T), pieces.tiles, pieces.cut
    sizes = np.prod(np.maximum(sides[2:] - sides[:2], 0), axis=0)

    def is_same(boxes: F32, classes: I32, first: Index, second: Index, match: float) -> Bool:
        x1, y1, x2, y2 = sides.take(first, axis=1)[:, :, None]
        u1, v1, u2, v2 = sides.take(second, axis=1)
        shared = np.minimum(x2, u2) - np.maximum(x1, u1)
        height = np.minimum(y2, v2) - np.maximum(y1, v1)
        np.maximum(shared, 0, out=shared)
        shared *= np.maximum(height, 0, out=height)
        one, other = sizes[first][:, None], sizes[second]
        is_part = np.where(one <= other, cut[first][:, None], cut[second])
        over = shared >= match * np.minimum(one, other)
        over &= is_part | (shared >= match * (one + other - shared))
        over &= (shared > 0) & (tiles[first][:, None] & tiles[second] == 0)
        over &= classes[first][:, None] == classes[second]
        return np.asarray(over)

    return is_same
