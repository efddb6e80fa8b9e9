"""Guess of the decoders that can read a model's outputs, by their shapes and names."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgert.errors import ModelError
from edgert.kinds import DECODERS
from edgert.stages.decode.decoder import Shapes, Size, all_cells
from edgert.stages.decode.needed import needed_outputs

STRIDES = (8, 16, 32)
MOST_QUERIES = 1000
"""Boundary between networks with queries, which have fewer boxes, and with priors, which have more."""
COCO_CLASSES = 80
BODIES = (16, 17, 18)
"""Numbers of keypoints of a body in MPII, COCO and OpenPose."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Reason why a decoder can read a model's outputs.

    A weight of 1 is possible, 2 likely, 3 or more if every number fits.
    """

    reason: str
    weight: int
    classes: int | None = None


@dataclass(frozen=True, slots=True)
class OutputSignature:
    """Properties of a model's outputs that are known before it runs.

    Attributes:
        shapes: output shapes without the batch dimension; 0 for a dynamic dimension.
        names: output names in lower case, separated by spaces.
        network: (width, height) of the input; None if it is dynamic or not an image.
        is_batched: whether the first output has a batch dimension in the model.
        dtypes: NumPy's names of the output types; empty if they are unknown.
    """

    shapes: Shapes
    names: str
    network: Size | None
    is_batched: bool = True
    dtypes: tuple[str, ...] = ()

    @property
    def is_integer(self) -> bool:
        """Whether there is one output, and it holds whole numbers."""
        return len(self.dtypes) == 1 and self.dtypes[0].lstrip("u").startswith(("int", "bool"))

    @property
    def table(self) -> tuple[int, int] | None:
        """Rows and columns of the only output; None for other outputs."""
        one = self.shapes[0] if len(self.shapes) == 1 else ()
        return (one[0], one[1]) if len(one) == 2 else None

    @property
    def maps(self) -> tuple[tuple[int, int, int, str], ...]:
        """Every possible (channels, height, width, order) of the only output as maps."""
        one = self.shapes[0] if len(self.shapes) == 1 else ()
        if len(one) == 2:
            return ((1, one[0], one[1], "no channels"),)
        if len(one) != 3:
            return ()
        first = (one[0], one[1], one[2], "nchw")
        return (first, (one[2], one[0], one[1], "nhwc")) if 0 < one[2] < min(one[:2]) else (first,)

    @property
    def is_one_channel(self) -> bool:
        """Whether the one output is a map of one channel over the image."""
        return any(maps[0] == 1 and self.covers(*maps[1:]) for maps in self.maps)

    @property
    def vector(self) -> int | None:
        """Length of the only output, if all but one of its dimensions are 1; None for other outputs."""
        sizes = [size for size in self.shapes[0] if size != 1] if len(self.shapes) == 1 else [0]
        if len(sizes) > 1 or 0 in sizes:
            return None
        return sizes[0] if sizes else 1

    def cells(self, strides: Sequence[int] = STRIDES) -> int | None:
        """Return the number of cells of a pyramid over the input; None if its size is unknown."""
        return None if self.network is None else all_cells(self.network, strides)

    def stride(self, height: int, width: int) -> float | None:
        """Return network pixels per cell of a map of this size; None if it has other proportions than the input."""
        if self.network is None or height < 2 or width < 2:
            return None
        across, down = self.network[0] / width, self.network[1] / height
        return across if abs(across - down) < 0.1 * down else None

    def covers(self, height: int, width: int, order: str) -> bool:
        """Return whether such a map can cover the complete image, with at least an eighth of its size."""
        stride = self.stride(height, width)
        return (order == "nchw" and not height and not width) or (stride is not None and stride <= 8)


@dataclass(frozen=True, slots=True)
class Guess:
    """One way to read a model's outputs; ``str(guess)`` is the line to write under ``task``.

    Attributes:
        task: key of the task, like ``detect``.
        decoder: value of the task, like ``yolox``.
        reason: sentence for messages.
        weight: see :class:`Fit`; raised or lowered by labels, names and the number of classes.
        classes: number of classes that the outputs would have; None if shapes do not show it.
        options: options of the decoder that no shape shows.
    """

    task: str
    decoder: str
    reason: str
    weight: int
    classes: int | None = None
    options: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.task}: {self.decoder}"


def guess(
    output_shapes: Sequence[Sequence[int | None]],
    output_names: Sequence[str],
    input_shape: Sequence[int | None],
    n_labels: int | None,
    *,
    is_batched: bool = True,
    dtypes: Sequence[str] = (),
) -> list[Guess]:
    """Return the decoders that can read such outputs, the likeliest first; empty if none can.

    Shapes have no batch dimension; dynamic dimensions are None. ``input_shape`` is (C, H, W) or (H, W, C). Names and
    types may be empty. ``is_batched`` is whether the first output has a batch dimension in the model.

    Raises ConfigError: a decoder of an installed package cannot be loaded.
    """
    shapes = tuple(tuple(size or 0 for size in shape) for shape in output_shapes)
    joined, network = " ".join(output_names).lower(), network_size(input_shape)
    signature = OutputSignature(shapes, joined, network, is_batched, tuple(dtypes))
    found = list[Guess]()
    kept = needed_outputs(shapes, output_names)
    if kept is not None and len(kept) < len(shapes):
        names = [output_names[place] for place in kept] if output_names else ()
        types = [dtypes[place] for place in kept] if dtypes else ()
        sizes = [shapes[place] for place in kept]
        few = guess(sizes, names, input_shape, n_labels, is_batched=is_batched, dtypes=types)
        spare = len(shapes) - len(kept)
        beside = f"{spare} output{'s' if spare > 1 else ''} beside it that {'are' if spare > 1 else 'is'} not needed"
        more = {"segment": 3} if "aux" in joined else {}  # a head that only training needs, for the same classes
        few = [replace(one, weight=one.weight + more.get(one.task, 0)) for one in few]
        found += [replace(one, reason=f"{one.reason}; with {beside}") for one in few]
    for task, registry in DECODERS.items():
        kinds: dict[type, str] = {}  # a class with several names, like ``softmax`` and ``logits``, gets its first
        for name in registry.names():
            kinds.setdefault(registry.get(name), name)
        for kind, name in kinds.items():
            for fit in kind.fits(signature):  # type: ignore[attr-defined]
                # Labels that match the classes, and words in names, raise the weight; too few labels lower it. Without
                # labels, so does an exact fit with as many classes as COCO, which most published models know.
                weight = fit.weight + any(word in signature.names for word in _WORDS.get(task, ()))
                if n_labels and fit.classes is not None:
                    weight += 2 * (n_labels == fit.classes) - (n_labels < fit.classes)
                elif fit.classes == COCO_CLASSES:
                    weight += task == "detect" and fit.weight >= 3
                found.append(Guess(task, name, fit.reason, weight, fit.classes))
    return sorted(found, key=lambda one: -one.weight)


def network_size(input_shape: Sequence[int | None]) -> Size | None:
    """Return width and height of (C, H, W) or (H, W, C); None if they are dynamic or it is not an image."""
    if len(input_shape) != 3:
        return None
    channels_first = input_shape[0] in (1, 3, 4) or input_shape[2] not in (1, 3, 4)
    height, width = input_shape[1:] if channels_first else input_shape[:2]
    return (width, height) if width and height else None


_WORDS = {
    "classify": ("prob", "softmax", "class", "logit", "fc"),
    "embed": ("embed", "feature", "feat", "descriptor"),
    "segment": ("seg", "mask", "sigmoid", "resizebilinear"),
    "keypoints": ("heat", "keypoint", "kpt", "pose"),
}


# Errors for outputs that a decoder cannot read.

_OWN = (
    "edgert has no decoder for these outputs: export the model with its boxes decoded, or run edgert new, which writes "
    "a template of your own decoder, task: {python: module:function}"
)


def wrong_shapes(decoder: str, reads: str, shapes: Shapes, network: Size) -> ModelError:
    """Return the error of a decoder that cannot read these outputs, naming the decoder that probably can."""
    width, height = network
    likely = [found for found in guess(shapes, (), (3, height, width), None) if str(found) != decoder]
    got = ", ".join(map(str, map(list, shapes))) or "no output"
    return ModelError(
        f"decoder '{decoder}' cannot read the model's outputs",
        why=f"it reads {reads}; got {got} from a {width}x{height} input (batch dimension left out)",
        fix=f"these look like '{likely[0]}': {likely[0].reason}" if likely else own_decoder(shapes, network),
    )


def own_decoder(shapes: Shapes, network: Size) -> str:
    """Return advice for outputs that no decoder reads, with the nearest decoders."""
    found = ", ".join(f"'{one}' ({what})" for one, what in nearest_heads(shapes, network))
    return f"nearest: {found}; {_OWN}" if found else _OWN


def nearest_heads(shapes: Shapes, network: Size) -> tuple[tuple[Guess, str], ...]:
    """Return (decoder, change) for decoders that would read the outputs after one change, the likeliest first."""
    found: dict[str, tuple[Guess, str]] = {}
    shapes = tuple(map(tuple, shapes))
    for what, others, size in _variations(shapes, network):
        if (others, size) == (shapes, network):
            continue
        for one in guess(others, (), (3, size[1], size[0]), None):
            if one.weight >= _LIKELY:
                found.setdefault(str(one), (one, what))
    return tuple(sorted(found.values(), key=lambda pair: -pair[0].weight)[:_MOST_NEAR])


_LIKELY, _MOST_NEAR = 2, 3
_SIZES = (224, 256, 320, 352, 384, 416, 512, 576, 640, 768, 960, 1024, 1280)
"""Common sides of square inputs of published detectors."""


def _variations(shapes: Shapes, network: Size) -> Iterator[tuple[str, Shapes, Size]]:
    """Yield (description, shapes, input size) after one change."""
    yield "with the last two dimensions swapped", tuple((*one[:-2], *one[:-3:-1]) for one in shapes), network
    yield "without dimensions of 1", tuple(tuple(size for size in one if size != 1) for one in shapes), network
    for place in range(len(shapes) if len(shapes) > 1 else 0):
        yield f"without output {place + 1}", tuple(one for n, one in enumerate(shapes) if n != place), network
    for side in _SIZES:
        yield f"of a {side}x{side} input", shapes, (side, side)
