"""Rules for convolutions, and for products with a stored matrix, which become 1×1 convolutions."""

from dla.limit import CBUF_SURE, DECONV_LONG, GUIDE, HEADER, LIMITS, banks
from dla.node import Node, Pair, Verdict, float_attribute, input_at, int_attribute, int_list, no, verify, window
from dla.rule import Target, outside, rule, within

_CBUF_FIX = "build it for INT8, use fewer input channels (split them and add) or a smaller kernel, or tile the width"
_PADDING_FIX = "pad less, or widen the kernel with zeros"
_LINEAR_FIX = "write it as a Conv with a 1×1 kernel on N×C×1×1"


@rule("conv.weights", GUIDE)
def weights(node: Node, target: Target) -> Verdict | None:
    """Require stored weights and a stored bias."""
    stored, bias = input_at(node, 1), input_at(node, 2)
    if stored is None or not stored.is_constant:
        return no("its weights are computed at run time", "store the weights, or leave it to the GPU")
    return None if bias is None or bias.is_constant else no("its bias is computed at run time", "store the bias")


kernel = within("conv.kernel", "kernel", "Limit the kernel's height and width.", "use several smaller kernels in a row")
stride = within("conv.stride", "stride", "Limit the stride of the kernel.", "use a smaller stride, twice")
dilation = within("conv.dilation", "dilation", "Limit the distance between the kernel's elements.", "dilate less")


@rule("conv.padding")
def padding(node: Node, target: Target) -> Verdict | None:
    """Limit the padding, and require it to be smaller than the kernel."""
    at = window(node)
    if at is None:
        return None
    far = outside("conv.padding", "padding", at.padding, _PADDING_FIX)
    if far is not None:
        return far
    over = [(pad, at.kernel[axis % 2], at.reach[axis % 2]) for axis, pad in enumerate(at.padding)]
    if any(pad >= reach for pad, _, reach in over):
        text = f"padding {max(at.padding)} must be smaller than the kernel {at.kernel[0]}×{at.kernel[1]}"
        return no(text, _PADDING_FIX)
    if any(pad >= size for pad, size, _ in over):
        return verify("padding is smaller than the dilated kernel but not than the kernel; the guide says kernel")
    return None


@rule("conv.channels")
def channels(node: Node, target: Target) -> Verdict | None:
    """Limit the channels read and written."""
    return outside("conv.channels", "channels", _kernel_channels(node), "split the channels over two convolutions")


@rule("conv.groups")
def groups(node: Node, target: Target) -> Verdict | None:
    """Limit the groups; question INT8 groups whose channels are no multiple of 4, except depthwise ones.

    Depthwise networks run: NVIDIA publishes SSD-MobileNet-v1 in INT8,
    https://github.com/NVIDIA/Deep-Learning-Accelerator-SW.
    """
    count = int_attribute(node, "group", 1)
    far = outside("conv.groups", "groups", [count], "split the channels over two convolutions")
    if far is not None or not target.is_int8 or count < 2:
        return far
    each = [size // count for size in _kernel_channels(node) if size is not None]
    if each[:1] == [1] or all(size % 4 == 0 for size in each):
        return None
    size = "×".join(map(str, each))
    return verify(f"INT8 groups should have a multiple of 4 channels; these have {size}", "pad them, or use FP16")


@rule("conv.cbuf")
def cbuf(node: Node, target: Target) -> Verdict | None:
    """Require one kernel and a slice of the input to fit into the convolution buffer."""
    at, image = window(node), input_at(node, 0)
    read = _kernel_channels(node)[0]
    if at is None or image is None or image.shape is None or image.rank != 4 or read is None:
        return None
    wide = image.shape[3]
    if wide is None:
        return None
    count, allowed = max(int_attribute(node, "group", 1), 1), LIMITS["conv.cbuf"]
    needed, literal = (
        banks(max(size, 1), wide, at.kernel, at.dilation[0], int8=target.is_int8) for size in (read // count, read)
    )
    if needed not in allowed:
        return no(f"it needs {needed} banks of the convolution buffer, which has {allowed.high}", _CBUF_FIX)
    text = f"it needs {needed} of {allowed.high} banks of the convolution buffer: TensorRT refused as many before"
    if needed <= CBUF_SURE < literal:
        text = f"it needs {needed} banks of the convolution buffer for one of its groups; taken literally, {literal}"
    return None if literal <= CBUF_SURE else verify(text, _CBUF_FIX)


def _kernel_channels(node: Node) -> tuple[int | None, int | None]:
    """Return the channels read and written; the kernel is (written, read / groups, height, width)."""
    stored = input_at(node, 1)
    if stored is None or stored.shape is None or len(stored.shape) < 2:
        return None, None
    each = stored.shape[1]
    return (None if each is None else each * int_attribute(node, "group", 1)), stored.shape[0]


CONV = (weights, kernel, stride, padding, dilation, channels, groups, cbuf)


@rule("gemm.weights", GUIDE)
def operand(node: Node, target: Target) -> Verdict | None:
    """Require the second operand to be stored."""
    stored = input_at(node, 1)
    if stored is not None and stored.is_constant:
        return None
    return no("both operands are computed at run time; one must be stored", "leave it to the GPU")


@rule("gemm.shape", GUIDE)
def flat(node: Node, target: Target) -> Verdict | None:
    """Require a row per image times a matrix, which is a 1×1 convolution; other forms need a transpose first."""
    rows = input_at(node, 0)
    if rows is not None and rows.is_constant:
        return no("its first operand is stored, instead of its second", _LINEAR_FIX)
    if node.op == "Gemm" and int_attribute(node, "transA", 0):
        return no("it transposes its input", _LINEAR_FIX)
    if rows is None or rows.rank in (2, None):
        return None
    return verify(f"a product of {rows.rank} dimensions: the sources mention rows only", _LINEAR_FIX)


@rule("gemm.scale", GUIDE)
def factors(node: Node, target: Target) -> Verdict | None:
    """Require factors of 1 and a stored bias."""
    if node.op != "Gemm":
        return None
    bias = input_at(node, 2)
    plain = float_attribute(node, "alpha", 1.0) == 1 and (bias is None or float_attribute(node, "beta", 1.0) == 1)
    if plain and (bias is None or bias.is_constant):
        return None
    return verify("it has factors or a computed bias", _LINEAR_FIX)


@rule("gemm.channels", LIMITS["conv.channels"].source)
def width(node: Node, target: Target) -> Verdict | None:
    """Limit rows and columns of the matrix, which are the channels of the convolution."""
    stored = input_at(node, 1)
    matrix = () if stored is None or stored.shape is None else stored.shape[-2:]
    return outside("conv.channels", "channels", matrix, "split the matrix")


GEMM = (operand, flat, factors, width)


# Transposed convolutions.

_FIX = "upsample with Resize and a Conv behind it; kernel = stride, without padding, compiles best"


@rule("deconv.kernel")
def deconv_kernel(node: Node, target: Target) -> Verdict | None:
    """Limit the kernel to 32, or to certain lengths in one direction; refuse large squares."""
    at = window(node)
    return None if at is None else _check_size("kernel", at.kernel)


@rule("deconv.stride")
def deconv_stride(node: Node, target: Target) -> Verdict | None:
    """Limit the stride to 32, or to certain lengths in one direction; refuse large squares."""
    at = window(node)
    return None if at is None else _check_size("stride", at.stride)


def _check_size(what: str, sides: Pair) -> Verdict | None:
    if 1 in sides and max(sides) in DECONV_LONG:
        return None
    far = outside(f"deconv.{what}", what, sides, _FIX)
    small, large = LIMITS["deconv.square"], LIMITS["deconv.kernel"]
    if far is None and sides[0] == sides[1] and sides[0] not in small:
        return no(f"a square {what} of {small.high + 1} to {large.high} is disabled, got {sides[0]}", _FIX)
    return far


@rule("deconv.padding", GUIDE)
def deconv_padding(node: Node, target: Target) -> Verdict | None:
    """Require no padding."""
    at = window(node)
    if at is not None and any(at.padding):
        return no(f"padding must be 0, got {'×'.join(map(str, at.padding))}", _FIX)
    if any(int_list(node, "output_padding", ())) or "output_shape" in node.attributes:
        return verify("the sources do not mention output padding", _FIX)
    return None


@rule("deconv.groups", GUIDE)
def deconv_groups(node: Node, target: Target) -> Verdict | None:
    """Require a single group."""
    count = int_attribute(node, "group", 1)
    return None if count == 1 else no(f"groups must be 1, got {count}", _FIX)


@rule("deconv.dilation", GUIDE)
def deconv_dilation(node: Node, target: Target) -> Verdict | None:
    """Require no dilation."""
    at = window(node)
    return None if at is None or at.dilation == (1, 1) else no("dilation must be 1", _FIX)


@rule("deconv.channels", HEADER)
def deconv_channels(node: Node, target: Target) -> Verdict | None:
    """Limit the channels read and written; the kernel is (read, written, height, width)."""
    stored = input_at(node, 1)
    return None if stored is None else outside("deconv.channels", "channels", (stored.shape or ())[:2], _FIX)


DECONV = (deconv_kernel, deconv_stride, deconv_padding, deconv_groups, deconv_dilation, deconv_channels)
