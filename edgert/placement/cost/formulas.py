"""Cost formulas: peak speeds of a board's accelerators, and times of units and transitions."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from edgert.board.record import Board
from edgert.board.sections import Mode, Precision
from edgert.errors import ConfigError
from edgert.placement.cost.coefficients import Coefficients, DlaCost, GpuCost
from edgert.placement.cost.power import Power
from edgert.placement.cost.work import Numbers, Scalars, Table
from edgert.placement.problem import GPU, Transition

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")
PRECISION_BYTES: dict[Precision, int] = {"fp32": 4, "fp16": 2, "int8": 1}
_TF32 = 8.0
"""First compute capability for which TensorRT multiplies FP32 on tensor cores by default (TF32), at half that of FP16:
https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/accuracy-considerations.html"""


@dataclass(frozen=True, slots=True)
class Speed:
    """Peak speeds of one accelerator; every field is one number, or an array with one number for each unit.

    Attributes:
        macs_per_s: multiply-adds per second of matrix operands.
        plain_macs_per_s: multiply-adds per second of CUDA cores; 0 for a DLA, which has none.
        clock_hz: clock of the accelerator.
        bytes_per_s: bandwidth of the DRAM that all accelerators share.
        memory_share: DRAM clock relative to the board's fastest.
        value_bytes: bytes of one activation or weight.
        precision: index into ``PRECISIONS``.
        sms: streaming multiprocessors; 1 for a DLA core.
        sparse_speedup: speedup of products whose weights have two zeros in four.
    """

    macs_per_s: Scalars
    plain_macs_per_s: Scalars
    clock_hz: Scalars
    bytes_per_s: Scalars
    memory_share: Scalars
    value_bytes: Scalars
    precision: Scalars
    sms: Scalars = 1
    sparse_speedup: Scalars = 1


def gpu_speed(board: Board, mode: Mode, precision: Precision) -> Speed:
    """Return the peak speeds of the GPU; without a fast path for INT8 it runs FP16, as TensorRT does.

    Raises:
        ConfigError: a clock or a rate of the mode is unknown.
    """
    precision = executed_precision(board, precision)
    tops = board.gpu_tops(mode, precision)
    if precision == "fp32" and float(board.gpu.compute) >= _TF32 and tops is not None:
        tops = max(tops, (board.gpu_tops(mode, "fp16") or 0.0) / 2)
    plain = board.gpu_tops(mode, "fp32")
    if tops is None or plain is None or mode.gpu_mhz is None:
        raise _unknown(board, mode)
    pairs = 1 if precision == "fp32" else 2  # FP16 values are multiplied in pairs
    speed = _speed(board, mode, precision, tops, pairs * plain, mode.gpu_mhz)
    return replace(speed, sms=mode.sms or board.gpu.sms, sparse_speedup=board.gpu.sparse_speedup)


def executed_precision(board: Board, precision: Precision) -> Precision:
    """Return the precision in which a board's GPU runs a model of the requested precision."""
    return "fp16" if precision == "int8" and board.gpu.ops_per_clock.int8 is None else precision


def dla_speed(board: Board, mode: Mode, precision: Precision, core: int, fp16_share: float) -> Speed | None:
    """Return the peak speeds of one DLA core; None where the mode has no such core or the DLA no such precision.

    Args:
        board: board with the DLA.
        mode: power mode of the board.
        precision: precision of the units.
        core: number of the DLA core.
        fp16_share: FP16 rate as a share of the INT8 rate, for boards whose FP16 rate is not published.

    Raises:
        ConfigError: the memory's clock is unknown.
    """
    clock_mhz = mode.dla_clock_mhz(core)
    if clock_mhz is None or precision == "fp32":
        return None
    tops = board.dla_tops(mode, precision, core) or fp16_share * (board.dla_tops(mode, "int8", core) or 0.0)
    if not tops:
        return None
    speed = _speed(board, mode, precision, tops, 0.0, clock_mhz)
    return replace(speed, sparse_speedup=board.dla.sparse_speedup if precision == "int8" else 1)


def _speed(board: Board, mode: Mode, precision: Precision, tops: float, plain_tops: float, clock_mhz: float) -> Speed:
    bandwidth = board.bandwidth_gb_s(mode)
    if bandwidth is None or mode.emc_mhz is None:
        raise _unknown(board, mode)
    return Speed(
        macs_per_s=tops * 1e12 / 2,
        plain_macs_per_s=plain_tops * 1e12 / 2,
        clock_hz=clock_mhz * 1e6,
        bytes_per_s=bandwidth * 1e9,
        memory_share=mode.emc_mhz / board.memory.emc_max_mhz,
        value_bytes=PRECISION_BYTES[precision],
        precision=PRECISIONS.index(precision),
    )


def _unknown(board: Board, mode: Mode) -> ConfigError:
    known = [other.name for other in board.modes if not other.unknown]
    return ConfigError(
        f"the speed of {board.name} in mode {mode.name!r} cannot be predicted",
        why=f"not published: {', '.join(mode.unknown) or 'rate per clock'}",
        fix=f"use a mode with known clocks ({', '.join(known) or 'none'}), or add clocks in your own board file",
    )


# Transitions between GPU and DLA: a reformat kernel on the GPU, and the start of the other engine.
#
# Reformats run on the GPU in both directions (https://github.com/NVIDIA/Deep-Learning-Accelerator-SW, FAQ), so they
# take GPU time even if the GPU computes nothing else. The fixed times count for the accelerator on which they were
# measured, as the additional time of a run that also had to pass a tensor on. The start of a loadable keeps the DLA
# busy, as in the published rates of loadables that run one after the other.

_PASSES = 2  # the tensor is read in one format and written in the other


def reformat_ms(size_bytes: float, speed: Speed, cost: GpuCost) -> float:
    """Return the milliseconds of the kernel that converts a tensor's format, with its launch."""
    launch_ms = cost.launch_us * 1e-3 + cost.launch_kcycles * 1e6 / float(speed.clock_hz)
    return launch_ms + _PASSES * size_bytes / (float(speed.bytes_per_s) * cost.bandwidth / 1e3)


def transition(size_bytes: float, start: str, end: str, cost: Coefficients, speed: Speed, watts: Power) -> Transition:
    """Return the cost of moving one tensor; between two DLA cores it is also reformatted once.

    Args:
        size_bytes: size of the tensor in the precision in which it moves.
        start: accelerator that writes the tensor.
        end: accelerator that reads it.
        cost: coefficients of the chip.
        speed: peak speeds of the GPU.
        watts: power of the board.
    """
    is_into, is_out_of = end != GPU, start != GPU
    gpu_ms = reformat_ms(size_bytes, speed, cost.gpu) + is_into * cost.transition.to_dla_us / 1e3
    from_ms = is_out_of * cost.transition.from_dla_us / 1e3
    to_ms = cost.dla.run_us / 1e3 if is_into and cost.dla is not None else 0.0  # the start of a loadable
    traffic = float(_PASSES * size_bytes)
    energy_mj = watts.energy_mj(GPU, gpu_ms, traffic) + watts.dla_w * (from_ms + to_ms)
    return Transition(gpu_ms + from_ms + to_ms, gpu_ms, energy_mj, traffic, from_ms, to_ms)


# Time of units on a DLA core: channels are padded, and bytes beyond the managed SRAM go through DRAM.
#
# time = layer + max(products / (peak * share), bytes beyond the SRAM / (bandwidth * share))
#
# Channels are padded to multiples of 16 (FP16) or 32 (INT8); a depthwise convolution uses one channel of each multiple.
# An input of up to four channels has its own format. Products of more than 64 channels in INT8 are faster if weights
# have two zeros in four. A sigmoid runs in FP16 as a separate step, and so do the product of a SiLU and its operands.
# Sources: https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-with-dla.html (formats, SRAM),
# https://github.com/NVIDIA/Deep-Learning-Accelerator-SW (operators).

_ALIGN = np.array([16.0, 16.0, 32.0])
_IMAGE = 4.0  # channels of the HWC4 format
_SPARSE_BEYOND = 64.0  # channels: https://github.com/NVIDIA/Deep-Learning-Accelerator-SW, FAQ
_HALF_BYTES = 2.0


def dla_seconds(units: Table, speed: Speed, cost: DlaCost) -> Numbers:
    """Return every unit's seconds on one core, alone on the board, without the start of the loadable."""
    memory = dla_bytes(units, speed, cost) / (np.asarray(speed.bytes_per_s) * cost.bandwidth)
    is_product = units.is_dense + units.is_depthwise
    plain = units.read / (np.asarray(speed.clock_hz) * cost.plain_per_clock)
    compute = is_product * _dense_seconds(units, speed, cost) + (1 - is_product) * plain
    clock_hz = np.asarray(speed.clock_hz)
    layer = cost.layer_us * 1e-6 / np.asarray(speed.memory_share) + cost.layer_kcycles * 1e3 / clock_hz
    return np.asarray(units.is_busy * (layer + np.maximum(compute, memory)))


def dla_bytes(units: Table, speed: Speed, cost: DlaCost) -> Numbers:
    """Return every unit's bytes to and from DRAM: weights, and the part of each tensor that exceeds the SRAM."""
    size = np.asarray(speed.value_bytes)
    spilled = np.maximum(units.read * size - cost.sram_bytes, 0) + np.maximum(units.written * size - cost.sram_bytes, 0)
    curved = cost.curved_passes * np.maximum(units.curved * _HALF_BYTES - cost.sram_bytes, 0)
    return np.asarray(units.is_busy * (spilled + curved + units.weights * size))


def _dense_seconds(units: Table, speed: Speed, cost: DlaCost) -> Numbers:
    align = _ALIGN[np.asarray(speed.precision, dtype=np.intp)]
    is_image = (units.channels <= _IMAGE) & (units.groups == 1)
    is_grouped = units.groups > 1
    channels = np.where(is_image, _IMAGE, np.ceil(units.channels / align) * align)
    columns = np.where(is_grouped, units.columns, np.ceil(units.columns / align) * align + cost.half_columns)
    faster = np.minimum(speed.sparse_speedup, cost.sparse_speedup)
    is_sparse = (units.is_sparse > 0) & (units.channels > _SPARSE_BEYOND)
    depth = channels * units.taps / np.where(is_sparse, faster, 1) + cost.half_depth
    macs = units.rows * units.groups * depth * columns
    return np.asarray(macs / (np.asarray(speed.macs_per_s) * cost.dense))


# Time of units on the GPU: a roofline with a fixed cost per kernel.
#
# time = launch + join(products / (peak * share), bytes / (bandwidth * share)) + curved bytes / (bandwidth * share)
#
# The result of a matrix product is divided into tiles, and a multiprocessor computes one tile at a time. n tiles on m
# multiprocessors take the time of ceil(n / m) tiles, even where tiles extend beyond the edge of the result. A tile
# loads operands in proportion to its two sides. Filling and draining its pipeline takes constant time. The share of the
# peak is s * k/(k + k0) / (1 + t0 * (1/height + 1/width) / 2). TensorRT measures which tile is best, among those that
# NVIDIA lists for its library. Tiles and waves:
# https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html.
#
# Width is rounded up to the size of a tensor core instruction, and depth to the channels of a block's step. A product
# with few vectors is bound by reading its matrix once. The cache keeps part of a small tensor for the next kernel.
# Products and memory overlap, but not fully. Roofline: https://doi.org/10.1145/1498765.1498785.
#
# Both products of an attention are one kernel with its own share of the peak. In INT8 it takes as long as in FP16,
# because the softmax is computed in FP16.
#
# An activation other than a rectifier is a separate pass over part of the layer's output: TensorRT fuses convolutions
# with ReLU, GELU, Clip and similar (best practices, layer fusion), and computes a sigmoid in FP16 even in INT8. Without
# a CUDA graph a CPU starts every kernel, which takes longer.

_GPU_ALIGN = np.array([4.0, 8.0, 16.0])
"""Channels of a tensor core instruction in FP32 (TF32), FP16 and INT8, which are 16 bytes; Tensor Core requirements in
https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html"""
_DEPTH_STEP = 4 * _GPU_ALIGN
"""Channels that a block of threads multiplies at a time: 64 bytes, as the third number of ``tilesize128x128x32`` in the
names of TensorRT's kernels says (https://github.com/ultralytics/ultralytics/issues/23047). Images have own kernels."""
_TILES = np.array([(256, 128), (128, 256), (256, 64), (64, 256), (128, 128), (128, 64), (64, 128), (64, 64)], float)
"""Rows and columns of results that a block of threads computes (same page, tile quantization)."""
_VECTORS = 8
"""Maximum rows of a product with few vectors: the minimum that a tensor core multiplies (mma.m16n8k16,
https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#warp-level-matrix-instructions)."""
_ATTENTION = 2.0
"""Ratio of the INT8 peak to the FP16 peak, in which attention is computed."""
_OVERLAP = 2.0
"""Exponent for the overlap of products and memory on all chips: 1 means one after the other, infinity full overlap."""


Launch = Literal["graph", "kernels"]
LAUNCHES: tuple[Launch, ...] = ("graph", "kernels")
"""Ways to start an engine's kernels: as one CUDA graph, as edgert does, or one by one from a CPU."""
_CPU_MHZ = 2000.0  # CPU clock for which ``enqueue_us`` holds; a slower CPU takes longer


def recorded_share(mode: Mode, launch: Launch) -> float:
    """Return ``recorded`` for :func:`gpu_seconds`: 1 for a CUDA graph, and less for a slower CPU without one."""
    return 1.0 if launch == "graph" else 1.0 - _CPU_MHZ / (mode.cpu_mhz or _CPU_MHZ)


def gpu_seconds(
    units: Table, speed: Speed, cost: GpuCost, recorded: Scalars = 1.0, waves: Numbers | None = None
) -> Numbers:
    """Return every unit's seconds alone on the board, with its launch, without the start of the engine.

    Args:
        units: units of the network.
        speed: peak speeds of the GPU.
        cost: coefficients of the GPU.
        recorded: 1 if the engine runs as a CUDA graph, 0 if a CPU of 2 GHz starts every kernel.
        waves: ``gpu_waves(units, speed)``, from callers that pass many costs; None to compute it.
    """
    clock_hz, macs_per_s = np.asarray(speed.clock_hz), np.asarray(speed.macs_per_s)
    value_bytes = np.asarray(speed.value_bytes)
    macs = units.rows * units.groups * units.columns * units.taps
    waves = gpu_waves(units, speed) if waves is None else waves
    products = units.is_dense * _gpu_dense_seconds(units, speed, cost, waves)
    products = products + units.is_depthwise * macs / (np.asarray(speed.plain_macs_per_s) * cost.plain)
    faster = np.where(value_bytes == 1, _ATTENTION, 1.0)
    products = products + units.is_attention * faster * macs * units.channels / (macs_per_s * cost.attention)
    bytes_per_s = np.asarray(speed.bytes_per_s) * cost.bandwidth
    memory = gpu_bytes(units, speed, cost) / bytes_per_s
    both = (products**_OVERLAP + memory**_OVERLAP) ** (1 / _OVERLAP)
    curved_bytes = np.where(value_bytes == 1, _HALF_BYTES * cost.int8_curved, value_bytes * cost.curved_passes)
    launch = cost.launch_us * 1e-6 + cost.launch_kcycles * 1e3 / clock_hz
    launch = launch + (1 - np.asarray(recorded)) * cost.enqueue_us * 1e-6
    return np.asarray(units.launches * launch + units.is_busy * both + units.curved * curved_bytes / bytes_per_s)


def gpu_bytes(units: Table, speed: Speed, cost: GpuCost) -> Numbers:
    """Return every unit's bytes to and from DRAM: weights, and the part of activations that leaves the cache.

    Half of a tensor of ``cache_bytes`` stays in the cache until the next kernel, less of a larger one.
    """
    sizes = (count * speed.value_bytes for count in (units.read, units.written))
    beyond = sum(size * size / np.maximum(size + cost.cache_bytes, 1) for size in sizes)
    return np.asarray(units.is_busy * (beyond + units.weights * speed.value_bytes))


def gpu_waves(units: Table, speed: Speed) -> Numbers:
    """Return the number of tiles that the busiest multiprocessor computes, (kinds of tiles, units)."""
    high, wide = _TILES.T[:, :, None]
    columns = _round_up_to(units.columns, _GPU_ALIGN[np.asarray(speed.precision, dtype=np.intp)])
    tiles = units.groups * np.ceil(units.rows / high) * np.ceil(columns / wide)
    return np.asarray(np.ceil(tiles / speed.sms))


def _gpu_dense_seconds(units: Table, speed: Speed, cost: GpuCost, waves: Numbers) -> Numbers:
    precision = np.asarray(speed.precision, dtype=np.intp)
    share = np.array([cost.dense_fp32, cost.dense_fp16, cost.dense_int8])[precision]
    half_depth = np.array([cost.half_depth, cost.half_depth, cost.int8_depth])[precision]
    half_tile = np.array([cost.half_tile, cost.half_tile, cost.int8_tile])[precision]
    align = np.where(units.channels <= _IMAGE, _GPU_ALIGN[precision], _DEPTH_STEP[precision])
    steps = _round_up_to(units.channels, align) * units.taps
    depth = steps / np.where(units.is_sparse, speed.sparse_speedup, 1) + half_depth
    area, around = _TILES.prod(axis=1)[:, None], _TILES.mean(axis=1)[:, None]
    results = (waves * (area + half_tile * around)).min(axis=0)
    per_sm = np.asarray(speed.macs_per_s) / speed.sms
    return np.where(units.rows > _VECTORS, results * depth / (per_sm * share), 0.0)


def _round_up_to(count: Numbers, step: Numbers) -> Numbers:
    return np.asarray(np.ceil(count / step) * step)
