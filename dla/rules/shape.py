"""Rules of layers that move data: Concat, Slice, Split, Reshape, Transpose."""

from dla.limit import GUIDE, HEADER, ISSUE_QDQ, SLICING, TYPED
from dla.node import FOLDED, Node, Verdict, axis_of, data_inputs, input_at, int_list, no, note, stored_integers, verify
from dla.rule import Target, rule

# Nodes that are removed before the network runs: stored results, renamed tensors, and scales.

_SCALES = ("QuantizeLinear", "DequantizeLinear")
_REQUANTIZE = "quantize the float model with edgert quantize --target dla"


def folded(node: Node) -> Verdict | None:
    """Return yes and the reason for a node that takes no time; None for a node that needs a layer."""
    made = [tensor for tensor in node.outputs if tensor is not None]
    if made and all(tensor.is_constant for tensor in made):
        return Verdict("yes", FOLDED, "its result is known beforehand and stored")
    if node.op in _SCALES:
        return Verdict("yes", FOLDED, "it becomes the scale of a tensor")
    if _is_renaming(node):
        return Verdict("yes", FOLDED, "its output equals its input: edgert removes it when it builds")
    return None


def _is_renaming(node: Node) -> bool:
    if not node.inputs or not node.outputs or node.inputs[0] is None or node.outputs[0] is None:
        return False
    source, made = node.inputs[0], node.outputs[0]
    match node.op:
        case "Identity":
            return True
        case "Dropout":
            mode = input_at(node, 2)
            idle = mode is None or mode.is_zero is True
            return idle and not any(node.outputs[1:])
        case "Cast":
            return source.dtype == made.dtype != "unknown"
        case "Concat":
            return len(node.inputs) == 1
        case "Transpose":
            order = int_list(node, "perm", ())
            return bool(order) and order == tuple(range(len(order)))
        case "Reshape":
            return source.shape == made.shape and source.shape is not None and source.shape.count(None) == 0
    return False


@rule("scale.symmetric", ISSUE_QDQ)
def symmetric(node: Node, target: Target) -> Verdict | None:
    """Require a zero point of 0: a calibration cache cannot express another."""
    zero = input_at(node, 2)
    if zero is None or zero.is_zero:
        return None
    if zero.is_zero is None:
        return verify("its zero point is not known beforehand, and has to be 0", _REQUANTIZE)
    if not target.is_typed:
        return no("its zero point is not 0, which calibration caches cannot express", _REQUANTIZE)
    return verify("its zero point is not 0: the parser needs ENABLE_UINT8_AND_ASYMMETRIC_QUANTIZATION_DLA", _REQUANTIZE)


@rule("scale.tensor", TYPED)
def per_tensor(node: Node, target: Target) -> Verdict | None:
    """Require one scale per activation; no source documents a scale per channel for weights."""
    scale, source = input_at(node, 1), input_at(node, 0)
    if scale is None or scale.size in (1, None):
        return None
    if source is None or not source.is_constant:
        return no("activations have one scale per tensor", _REQUANTIZE)
    if target.is_typed:
        return verify("whether weights may have a scale per channel is not documented", _REQUANTIZE)
    return None  # the builder computes the scales of weights itself


SCALE = (symmetric, per_tensor)


_STEP_FIX = "space-to-depth can be written as a Conv with stored 0 and 1"
_SPLIT_FIX = "compute the parts with one Conv each"


@rule("concat.axis", GUIDE)
def axis(node: Node, target: Target) -> Verdict | None:
    """Require a Concat of channels."""
    rank = next((tensor.rank for tensor in data_inputs(node) if tensor.rank is not None), None)
    if rank is None:
        return None
    place = axis_of(node, rank, 1)
    return None if place == rank - 3 else no(f"it joins along axis {place}; only channels can be joined",
                                             "join on the GPU, after the network")  # fmt: skip


@rule("concat.inputs", GUIDE)
def joined(node: Node, target: Target) -> Verdict | None:
    """Question a stored input of a Concat, which would stay a Constant layer."""
    if all(tensor is None or not tensor.is_constant for tensor in node.inputs):
        return None
    return verify("one of its inputs is stored: it may stay a Constant layer, which runs on the GPU")


@rule("slice.arguments", HEADER)
def arguments(node: Node, target: Target) -> Verdict | None:
    """Require stored limits of a slice."""
    parts = [stored_integers(node, name, place) for place, name in enumerate(("starts", "ends", "axes", "steps"), 1)]
    return no("its limits are computed at run time", "store them") if None in parts else None


@rule("slice.axis", HEADER)
def sliced(node: Node, target: Target) -> Verdict | None:
    """Refuse a slice of the batch."""
    image, made = input_at(node, 0), node.outputs[0]
    if image is None or made is None or not image.shape or not made.shape or image.shape[0] == made.shape[0]:
        return None
    return no("it slices the batch", "slice before or after the network")


@rule("slice.step", HEADER)
def step(node: Node, target: Target) -> Verdict | None:
    """Require a step of 1."""
    steps = stored_integers(node, "steps", 4)
    return None if steps is None or set(steps) <= {1} else no(f"its step must be 1, got {list(steps)}", _STEP_FIX)


@rule("slice.precision", SLICING)
def precision(node: Node, target: Target) -> Verdict | None:
    """Run slices in FP16, as an INT8 build may; question them in a strongly typed INT8 network, which may not."""
    if not target.is_int8:
        return None
    if target.is_typed:
        return verify("its tensors are typed INT8, and a DLA slices only FP16 as far as is known", _SPLIT_FIX)
    return note("a slice runs in FP16 inside an INT8 build", "fp16")


@rule("split.axis", HEADER)
def split(node: Node, target: Target) -> Verdict | None:
    """Require stored parts, as a split is several slices, and refuse a split of the batch."""
    image = input_at(node, 0)
    if image is None or image.rank is None:
        return None
    if axis_of(node, image.rank, 0) == 0:
        return no("it splits the batch", "split before or after the network")
    return no("its parts are computed at run time", "store them") if stored_integers(node, "split", 1) is None else None


@rule("shuffle.open", GUIDE)
def shuffle(node: Node, target: Target) -> Verdict | None:
    """Question Reshape and Transpose, whose limits no public page states."""
    image, made = input_at(node, 0), node.outputs[0]
    shapes = [tensor.shape for tensor in (image, made) if tensor is not None and tensor.shape is not None]
    if any(len(shape) != 4 for shape in shapes):
        ranks = " to ".join(str(len(shape)) for shape in shapes)
        return verify(f"it goes from {ranks} dimensions; as far as is known both must be 4")
    moves_batch = node.op == "Transpose" and int_list(node, "perm", (3, 2, 1, 0))[:1] != (0,)
    if len({shape[0] for shape in shapes}) > 1 or moves_batch:
        return verify("it moves or changes the batch; as far as is known the batch must stay the first axis")
    return verify(f"TensorRT splits {node.op} into pieces and tests each; no public source has the rules")


@rule("reshape.shape", GUIDE)
def target_shape(node: Node, target: Target) -> Verdict | None:
    """Require a stored new shape."""
    stored = input_at(node, 1)
    return None if stored is None or stored.is_constant else no("its shape is computed at run time", "store it")


CONCAT = (axis, joined)
SLICE = (arguments, sliced, step, precision)
SPLIT = (split, precision)
