"""Choice of the outputs of a model that a decoder needs, and their order, by names and shapes."""

from collections.abc import Sequence

from edgert.stages.decode.decoder import Shapes, roles_of


def needed_outputs(shapes: Shapes, names: Sequence[str] = ()) -> tuple[int, ...] | None:
    """Return the indices of the outputs that a decoder needs, in its order; None if it may need all in their order.

    Exporters write raw feature maps beside the boxes decoded from them, as YOLOv5's did up to release 6.0
    (``models/yolo.py``, Detect.forward). Together, those maps have as many cells as there are boxes. Heads that only
    training needs have ``aux`` in their names, as in torchvision's segmentation models. Transformers return their
    hidden states. TensorFlow's detection API and torchvision name the final boxes, and add masks or raw boxes.
    """
    if (final := _final_outputs(shapes, names)) is not None:
        return final
    spare = {place for place, name in enumerate(names) if any(word in name.lower() for word in _SPARE)}
    spare |= _raw_maps(shapes) | _beside_landmarks(shapes, names) | _side_masks(shapes)
    kept = tuple([place for place in range(len(shapes)) if place not in spare])
    if len(kept) == 2 and names and _are_swapped([shapes[place] for place in kept], [names[place] for place in kept]):
        return kept[::-1]
    return kept if spare and kept else None


_SPARE = ("aux", "hidden_state")
_PREFIXES = ("detection_", "det_", "nmsed_", "")
_ENDS = (("boxes", "bboxes"), ("classes", "labels", "class_ids"), ("scores",))
_COUNTS = ("num_detections", "num_dets", "valid_detections")


def _final_outputs(shapes: Shapes, names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the indices of final boxes, classes, scores, and perhaps their count; None if names do not show them.

    Classes and scores may both be floats, as with TensorRT's BatchedNMS, so that only names distinguish them.
    """
    plain = [name.lower().partition(":")[0] for name in names]
    for prefix in _PREFIXES:
        found = [[plain.index(prefix + end) for end in ends if prefix + end in plain] for ends in _ENDS]
        if not all(found):
            continue
        places = [one[0] for one in found]
        # A count with the shape of the other rows is left out: rows beyond it have no score.
        for kept in ([*places, *[plain.index(name) for name in _COUNTS if name in plain]], places):
            if roles_of([shapes[place] for place in kept]) is not None:
                return tuple(kept)
    return None


def _are_swapped(shapes: Shapes, names: Sequence[str]) -> bool:
    """Return whether the first of two tables [N, 4] is the boxes, and the second the scores of four classes."""
    first, second = (any(word in name.lower() for word in ("box", "dets")) for name in names)
    return shapes[0] == shapes[1] and shapes[0][1:] == (4,) and first and not second


def _beside_landmarks(shapes: Shapes, names: Sequence[str]) -> set[int]:
    """Return the indices of feature maps beside one vector of landmarks, as PFLD's."""
    marks = [place for place, name in enumerate(names) if "landmark" in name.lower()]
    if len(marks) != 1 or len(shapes[marks[0]]) > 2:
        return set()
    return {place for place, shape in enumerate(shapes) if len(shape) == 3}


def _side_masks(shapes: Shapes) -> set[int]:
    """Return the indices behind the first of many masks, as of U-2-Net, which fuses the others into it."""
    is_same = len(shapes) > 4 and len(set(shapes)) == 1 and len(shapes[0]) == 3 and shapes[0][0] == 1
    return set(range(1, len(shapes))) if is_same else set()


def _raw_maps(shapes: Shapes) -> set[int]:
    """Return the indices of maps that together have as many cells as a table beside them has boxes."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for place, shape in enumerate(shapes):
        if len(shape) == 4:  # anchors, height, width, numbers
            alike.setdefault((shape[0], shape[3], 4), []).append(place)
        elif len(shape) == 3:
            alike.setdefault((shape[0], 3), []).append(place)
    found = set[int]()
    for table in (one for one in shapes if len(one) == 2 and 0 not in one):
        for (first, *_), places in alike.items():
            sizes = [shapes[place][-3:-1] if len(shapes[place]) == 4 else shapes[place][1:] for place in places]
            cells = sum(height * width for height, width in sizes)
            if len(places) < 2 or len(set(sizes)) < len(sizes) or not cells:
                continue
            if len(shapes[places[0]]) == 4:
                is_raw = shapes[places[0]][3] == table[1] and first * cells == table[0]
            else:  # channels of all anchors, or one box per cell
                is_raw = cells in table or (first % table[1] == 0 and first // table[1] * cells == table[0])
            found |= set(places) if is_raw else set()
    return found
