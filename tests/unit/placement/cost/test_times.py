"""The cost formulas, against values worked out by hand and the shapes they must have."""

from dataclasses import replace

import numpy as np
import pytest

from edgert.board.record import board
from edgert.errors import ConfigError
from edgert.graph import Graph
from edgert.placement.cost.coefficients import DlaCost, GpuCost
from edgert.placement.cost.formulas import Speed, dla_bytes, dla_seconds, dla_speed, gpu_bytes, gpu_seconds, gpu_speed
from edgert.placement.cost.work import Table, table, units
from tools.networks.builder import Builder
from tools.networks.transformer import Transformer

GPU = GpuCost(
    dense_fp32=0.5, dense_fp16=0.5, dense_int8=0.25, half_depth=0, half_tile=0, int8_depth=0, int8_tile=0,
    attention=0.25, plain=0.5, bandwidth=0.5, cache_bytes=0, curved_passes=0, int8_curved=0, launch_us=2,
    launch_kcycles=3, enqueue_us=7, run_us=10,
)  # fmt: skip
DLA = DlaCost(
    dense=0.5, half_depth=0, half_columns=0, bandwidth=0.5, plain_per_clock=10, layer_us=4, layer_kcycles=1, run_us=10,
    sram_bytes=0, curved_passes=5, fp16_share=0.1,
)  # fmt: skip
FAST = Speed(
    macs_per_s=1e12, plain_macs_per_s=1e11, clock_hz=1e9, bytes_per_s=1e15, memory_share=1, value_bytes=2, precision=1
)
"""A memory so fast that only arithmetic counts."""
SLOW_MEMORY = replace(FAST, macs_per_s=1e18, plain_macs_per_s=1e18, bytes_per_s=1e9)


def columns(graph: Graph, scale: float = 1.0) -> Table:
    return table(units(graph), scale)


def convolution(channels: int, out: int, act: str | None = None, groups: int = 1) -> Table:
    b = Builder(1, channels, 32, 32)
    return columns(b.graph(b.conv("input", out, 3, act=act, groups=groups)))


def test_gpu_time_is_launch_and_products() -> None:
    macs = 64 * 64 * 9 * 1024
    seconds = gpu_seconds(convolution(64, 64), FAST, GPU)
    assert seconds == pytest.approx([2e-6 + 3e-6 + macs / 0.5e12])


def test_gpu_time_of_little_to_multiply_is_bytes() -> None:
    moved = 2 * (2 * 64 * 1024 + 64 * 64 * 9 + 64)
    assert gpu_bytes(convolution(64, 64), SLOW_MEMORY, GPU) == pytest.approx([moved])
    assert gpu_seconds(convolution(64, 64), SLOW_MEMORY, GPU) == pytest.approx([5e-6 + moved / 0.5e9])


def test_gpu_cache_keeps_half_of_a_tensor_of_its_size() -> None:
    cached = GPU.model_copy(update={"cache_bytes": 2 * 64 * 1024})
    moved = 2 * (64 * 1024 + 64 * 64 * 9 + 64)
    assert gpu_bytes(convolution(64, 64), SLOW_MEMORY, cached) == pytest.approx([moved])


def test_gpu_pads_channels_to_what_its_instructions_take() -> None:
    times = [gpu_seconds(convolution(channels, 64), FAST, GPU)[0] for channels in (33, 64, 65)]
    assert times[0] == pytest.approx(times[1])
    assert times[2] > times[1]


def test_gpu_is_less_efficient_on_narrow_products() -> None:
    cost = GPU.model_copy(update={"half_depth": 576.0, "launch_us": 0.0, "launch_kcycles": 0.0})
    narrow, deep = (gpu_seconds(convolution(channels, 64), FAST, cost)[0] for channels in (64, 640))
    assert narrow / (64 * 64 * 9 * 1024 / 0.5e12) == pytest.approx(2)
    assert deep / (640 * 64 * 9 * 1024 / 0.5e12) == pytest.approx(1.1)


def test_depthwise_convolution_runs_on_plain_cores() -> None:
    seconds = gpu_seconds(convolution(64, 64, groups=64), FAST, GPU)
    assert seconds == pytest.approx([5e-6 + 64 * 9 * 1024 / 0.5e11])


def test_int8_has_a_depth_of_its_own() -> None:
    cost = GPU.model_copy(update={"int8_depth": 576.0, "launch_us": 0.0, "launch_kcycles": 0.0})
    as_int8 = replace(FAST, precision=2, value_bytes=1)
    macs = 64 * 64 * 9 * 1024
    assert gpu_seconds(convolution(64, 64), FAST, cost) == pytest.approx([macs / 0.5e12])
    assert gpu_seconds(convolution(64, 64), as_int8, cost) == pytest.approx([2 * macs / 0.25e12])


@pytest.mark.parametrize(("out", "sms", "tiles"), [(64, 1, 16), (65, 1, 32), (64, 16, 1), (64, 15, 2), (192, 16, 3)])
def test_the_busiest_multiprocessor_computes_whole_tiles(out: int, sms: int, tiles: int) -> None:
    """1024 results of a channel are 16 tiles of 64 x 64; larger ones leave more multiprocessors idle, or no fewer."""
    seconds = gpu_seconds(convolution(64, out), replace(FAST, sms=sms), GPU)[0]
    assert seconds == pytest.approx(5e-6 + tiles * 64 * 64 * 64 * 9 / (0.5e12 / sms))


def test_large_tiles_load_less_and_are_taken_where_they_fit() -> None:
    cost = GPU.model_copy(update={"half_tile": 64.0, "launch_us": 0.0, "launch_kcycles": 0.0})
    macs = 1024 * 64 * 9 * 64
    narrow, wide = (gpu_seconds(convolution(64, out), FAST, cost)[0] for out in (64, 256))
    assert narrow == pytest.approx((1 + 64 * (1 / 256 + 1 / 64) / 2) * macs / 0.5e12)
    assert wide == pytest.approx((1 + 64 * (1 / 256 + 1 / 128) / 2) * 4 * macs / 0.5e12)


@pytest.mark.parametrize(("rows", "waits"), [(1, False), (8, False), (9, True)])
def test_a_product_with_a_vector_only_reads_its_matrix(rows: int, waits: bool) -> None:
    b = Transformer(rows, 64)
    seconds = gpu_seconds(columns(b.graph(b.project("input", 64))), FAST, GPU)[0]
    assert (seconds > 5.1e-6) == waits


def test_a_graph_saves_what_starting_kernels_takes_the_cpu() -> None:
    without, recorded = (gpu_seconds(convolution(64, 64), FAST, GPU, is_graph) for is_graph in (0.0, 1.0))
    assert without - recorded == pytest.approx([7e-6])
    assert gpu_seconds(convolution(64, 64), FAST, GPU) == pytest.approx(recorded)


@pytest.mark.parametrize(("act", "passes"), [("relu", 0), ("relu6", 0), ("silu", 1), ("leaky", 1)])
def test_an_activation_that_is_no_rectifier_is_a_pass_of_its_own(act: str, passes: int) -> None:
    cost = GPU.model_copy(update={"curved_passes": 0.5})
    more = gpu_seconds(convolution(64, 64, act), SLOW_MEMORY, cost) - gpu_seconds(
        convolution(64, 64, act), SLOW_MEMORY, GPU
    )
    assert more == pytest.approx([passes * 0.5 * 2 * 64 * 1024 / 0.5e9])
    as_int8 = replace(SLOW_MEMORY, precision=2, value_bytes=1)
    halves = GPU.model_copy(update={"int8_curved": 0.5})
    more = gpu_seconds(convolution(64, 64, act), as_int8, halves) - gpu_seconds(convolution(64, 64, act), as_int8, GPU)
    assert more == pytest.approx([passes * 0.5 * 2 * 64 * 1024 / 0.5e9])


def test_products_and_memory_overlap_but_not_wholly() -> None:
    cost = GPU.model_copy(update={"launch_us": 0.0, "launch_kcycles": 0.0})
    macs, moved = 64 * 64 * 9 * 1024, 2 * (2 * 64 * 1024 + 64 * 64 * 9 + 64)
    speed = replace(FAST, bytes_per_s=moved / (macs / 1e12))
    alone = macs / 0.5e12
    assert alone < gpu_seconds(convolution(64, 64), speed, cost)[0] == pytest.approx(alone * 2**0.5)


def test_both_products_of_an_attention_have_a_share_of_their_own() -> None:
    b = Transformer(1, 128, 64)
    (work,) = (one for one in units(b.graph(b.attention("input", 4))) if one.kind == "attention")
    assert work.macs == 2 * 128 * 128 * 64
    assert gpu_seconds(table([work]), FAST, GPU) == pytest.approx([5e-6 + work.macs / 0.25e12], rel=1e-3)
    as_int8 = replace(FAST, precision=2, value_bytes=1, macs_per_s=2 * FAST.macs_per_s)
    assert gpu_seconds(table([work]), as_int8, GPU) == pytest.approx(gpu_seconds(table([work]), FAST, GPU), rel=1e-3)


def pruned(channels: int, zeros: int, kind: str = "conv") -> Graph:
    """A product of which so many of every four input channels' weights are zero."""
    b = Transformer(1, 16, channels) if kind == "project" else Builder(1, channels, 32, 32)
    y = b.project("input", 64) if isinstance(b, Transformer) else b.conv("input", 64, 3)
    name = next(name for name, array in b.constants.items() if array.ndim > 1)
    array = np.ones(b.constants[name].shape, np.float32)
    inputs = np.arange(channels) % 4 < zeros
    array[(inputs,) if kind == "project" else (slice(None), inputs)] = 0
    b.constants[name] = array
    return b.graph(y)


@pytest.mark.parametrize("kind", ["conv", "project"])
@pytest.mark.parametrize(("zeros", "is_sparse"), [(1, False), (2, True), (3, True)])
def test_two_zeros_in_four_weights_are_seen_where_they_are_asked_for(kind: str, zeros: int, is_sparse: bool) -> None:
    graph = pruned(128, zeros, kind)
    assert [work.is_sparse for work in units(graph)] == [False]
    assert [work.is_sparse for work in units(graph, sparse=True)] == [is_sparse]


def test_channels_that_are_no_multiple_of_four_are_dense() -> None:
    b = Builder(1, 3, 32, 32)
    assert [work.is_sparse for work in units(b.graph(b.conv("input", 64, 3)), sparse=True)] == [False]


def test_two_zeros_in_four_save_products_by_the_board_s_speedup() -> None:
    sparse, dense = table(units(pruned(128, 2), sparse=True)), table(units(pruned(128, 2)))
    twice = replace(FAST, sparse_speedup=2)
    for speed, saved in ((FAST, 0.0), (twice, 128 * 64 * 9 * 1024 / 0.5e12 / 2)):
        assert gpu_seconds(dense, speed, GPU) - gpu_seconds(sparse, speed, GPU) == pytest.approx([saved])
    cost = DLA.model_copy(update={"sparse_speedup": 1.5})
    on_dla = [dla_seconds(one, replace(twice, precision=2, value_bytes=1), cost)[0] - 5e-6 for one in (dense, sparse)]
    assert on_dla[0] == pytest.approx(1.5 * on_dla[1])
    few = [table(units(pruned(64, 2), sparse=asked)) for asked in (False, True)]
    assert dla_seconds(few[0], twice, cost) == pytest.approx(dla_seconds(few[1], twice, cost))


def test_a_dla_saves_by_zeros_in_int8_alone() -> None:
    orin = board("agx-orin-64gb")
    found = {name: dla_speed(orin, orin.mode("MAXN"), name, 0, 0.06) for name in ("fp16", "int8")}
    assert {name: speed.sparse_speedup for name, speed in found.items() if speed} == {"fp16": 1, "int8": 2}


def test_batch_shares_launch_and_weights() -> None:
    b = Builder(1, 64, 8, 8)
    graph = b.graph(b.conv("input", 64, 3))
    one, eight = (gpu_seconds(columns(graph, scale), SLOW_MEMORY, GPU)[0] for scale in (1, 8))
    assert one < eight < 8 * one


def test_dla_pads_channels_to_16_or_32() -> None:
    as_int8 = replace(FAST, precision=2, value_bytes=1)
    for speed, step in ((FAST, 16), (as_int8, 32)):
        exact, more, next_step = (
            dla_seconds(convolution(channels, 64), speed, DLA)[0] for channels in (step, step + 1, 2 * step)
        )
        assert more == pytest.approx(next_step)
        assert exact < more


def test_dla_wastes_a_step_on_every_depthwise_channel() -> None:
    busy = dla_seconds(convolution(64, 64, groups=64), FAST, DLA)[0] - 5e-6
    assert busy == pytest.approx(16 * 64 * 9 * 1024 / 0.5e12)


def test_dla_has_a_format_for_images() -> None:
    image, more = (dla_seconds(convolution(channels, 16), FAST, DLA)[0] - 5e-6 for channels in (3, 5))
    assert more == pytest.approx(4 * image)


def test_dla_moves_what_its_sram_does_not_hold() -> None:
    small, large = convolution(16, 16), convolution(64, 64)
    cost = DLA.model_copy(update={"sram_bytes": 16 * 1024 * 2})
    weights = [2 * (16 * 16 * 9 + 16), 2 * (64 * 64 * 9 + 64)]
    assert dla_bytes(small, FAST, cost)[0] == weights[0]
    assert dla_bytes(large, FAST, cost)[0] == weights[1] + 2 * (64 - 16) * 1024 * 2
    assert dla_bytes(small, FAST, DLA)[0] == weights[0] + 2 * 16 * 1024 * 2


def test_dla_pays_for_sigmoids_in_memory() -> None:
    plain, curved = (dla_bytes(convolution(64, 64, act), FAST, DLA)[0] for act in ("relu", "silu"))
    assert curved - plain == 5 * 2 * 64 * 1024


def test_dla_layer_costs_more_when_the_memory_is_slow() -> None:
    full, half = (dla_seconds(convolution(16, 16), replace(FAST, memory_share=share), DLA)[0] for share in (1.0, 0.5))
    assert half - full == pytest.approx(4e-6)


def test_views_take_no_time_anywhere() -> None:
    b = Builder(1, 8, 4, 4)
    view = columns(b.graph(b.reshape("input", 128)))
    assert not np.any(gpu_seconds(view, FAST, GPU))
    assert not np.any(dla_seconds(view, FAST, DLA))


def test_peaks_follow_board_and_mode() -> None:
    orin = board("agx-orin-64gb")
    full, low = (gpu_speed(orin, orin.mode(name), "fp16") for name in ("MAXN", "MODE_15W"))
    assert full.macs_per_s == pytest.approx(16 * 1024 * 1300.5e6)
    assert low.macs_per_s == pytest.approx(6 * 1024 * 408e6)
    assert low.memory_share == pytest.approx(2133 / 3199)
    assert full.bytes_per_s == pytest.approx(204.736e9)


def test_fp32_runs_on_tensor_cores_from_ampere_on() -> None:
    orin, xavier = board("agx-orin-64gb"), board("agx-xavier-32gb")
    orin_rates, xavier_rates = (
        [gpu_speed(item, item.mode("MAXN"), precision).macs_per_s for precision in ("fp16", "fp32")]  # type: ignore[arg-type]
        for item in (orin, xavier)
    )
    assert orin_rates[1] == pytest.approx(orin_rates[0] / 2)
    assert xavier_rates[1] == pytest.approx(xavier_rates[0] / 8)


def test_int8_is_fp16_where_there_is_none() -> None:
    nano = board("jetson-nano-4gb")
    assert gpu_speed(nano, nano.mode("MAXN"), "int8") == gpu_speed(nano, nano.mode("MAXN"), "fp16")


def test_dla_speed_is_none_where_there_is_nothing() -> None:
    orin, nano = board("agx-orin-64gb"), board("orin-nano-8gb")
    assert dla_speed(orin, orin.mode("MAXN"), "fp32", 0, 0.1) is None
    assert dla_speed(orin, orin.mode("MAXN"), "int8", 2, 0.1) is None
    assert dla_speed(nano, nano.mode("15W"), "int8", 0, 0.1) is None
    half = dla_speed(orin, orin.mode("MAXN"), "fp16", 1, 0.1)
    assert half is not None and half.macs_per_s == pytest.approx(0.1 * 8192 * 1600e6)


def test_mode_with_unknown_clocks_is_told() -> None:
    thor = board("thor-t5000")
    dark = thor.mode("90W").model_copy(update={"gpu_mhz": None})
    with pytest.raises(ConfigError, match=r"thor-t5000 in mode '90W' cannot be predicted") as error:
        gpu_speed(thor, dark, "int8")
    assert "MAXN" in str(error.value.fix)
