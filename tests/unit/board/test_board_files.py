"""All board files together: nothing without a source, nothing that contradicts its chip or what was published."""

from collections import defaultdict

import pytest

from edgert.board.record import Board, Mode, board, board_names, boards, numbers

BOARDS = board_names()
DLA_SW = (
    "https://github.com/NVIDIA/Deep-Learning-Accelerator-SW/blob/ea61780e417c6e29380760cca651e4cb2b8b55cb/README.md"
)


@pytest.mark.parametrize("name", BOARDS)
def test_every_number_has_a_source_and_a_confidence(name: str) -> None:
    found = list(numbers(board(name)))
    assert len(found) > 25
    for number in found:
        assert number.origin.source.startswith("https://"), number.key
        assert number.origin.confidence in ("high", "medium", "low"), number.key
        assert number.value is not None or number.origin.confidence != "high" or number.key.endswith("watts"), (
            number.key
        )


def test_all_83_modes_are_there() -> None:
    count = {record.name: len(record.modes) for record in boards()}
    assert sum(count.values()) == 83
    assert count["xavier-nx-8gb"] == 9 and count["agx-xavier-64gb"] == 8 and count["thor-t4000"] == 1


@pytest.mark.parametrize("name", BOARDS)
def test_a_mode_without_limit_is_as_fast_as_its_board(name: str) -> None:
    record = board(name)
    peak = record.peak_mode
    for mode in record.modes:
        for key in mode.uncapped:
            assert getattr(mode, key) == getattr(peak, key), (mode.name, key)
        assert mode.dla_cores == record.dla.cores
        assert (mode.dla_mhz is None) == (not record.dla.cores)


@pytest.mark.parametrize("name", [name for name in BOARDS if name != "thor-t4000"])
def test_the_fastest_mode_reaches_every_maximum(name: str) -> None:
    """A maximum that no mode reaches would be somebody's guess."""
    record = board(name)
    for key in ("sms", "gpu_mhz", "cpu_cores", "cpu_mhz", "emc_mhz", *(("dla_mhz",) if record.dla.cores else ())):
        reached = [value for mode in record.modes if (value := getattr(mode, key)) is not None]
        assert max(reached) == getattr(record.peak_mode, key), key


def _tops(record: Board, mode: Mode) -> float:
    gpu = record.gpu_tops(mode, "int8") or record.gpu_tops(mode, "fp16")
    dla = sum(record.dla_tops(mode, "int8", core) or 0 for core in range(mode.dla_cores))
    assert gpu is not None
    return gpu + dla


@pytest.mark.parametrize("name", BOARDS)
def test_more_watts_are_never_slower_in_all(name: str) -> None:
    record = board(name)
    limited = [mode for mode in record.modes if mode.watts is not None and not mode.unknown]
    best: dict[float, float] = defaultdict(float)
    for mode in limited:
        assert mode.watts is not None
        best[mode.watts] = max(best[mode.watts], _tops(record, mode))
    speeds = [best[watts] for watts in sorted(best)]
    assert speeds == sorted(speeds)


def test_what_a_chip_fixes_is_the_same_on_all_its_boards() -> None:
    rates = {(b.soc, b.gpu.compute, b.gpu.architecture, b.gpu.ops_per_clock, b.gpu.sparse_speedup) for b in boards()}
    assert len(rates) == len({record.soc for record in boards()}) == 5
    cores = {(b.soc, b.gpu.cuda_cores // b.gpu.sms) for b in boards()}
    assert len(cores) == 5
    with_dla = {(b.soc, b.dla.generation, b.dla.ops_per_clock, b.dla.sram_bytes) for b in boards() if b.dla.cores}
    assert len(with_dla) == 2
    for record in boards():
        assert record.gpu.ops_per_clock.fp32 == 2 * record.gpu.cuda_cores // record.gpu.sms, record.name


ROUNDED = {"orin-nano-4gb": 0.03, "orin-nano-8gb": 0.03}  # 20.5 and 41.0 are sold as 20 and 40
OF_XAVIER = {"agx-xavier-32gb", "agx-xavier-64gb", "xavier-nx-8gb", "xavier-nx-16gb"}


@pytest.mark.parametrize("name", [name for name in BOARDS if board(name).advertised is not None])
def test_the_advertised_tops_follow_from_clocks_and_rates(name: str) -> None:
    record = board(name)
    assert record.advertised is not None
    peak, sparse = record.peak_mode, record.gpu.sparse_speedup
    tops = sparse * _tops(record, peak)
    if name in OF_XAVIER:  # counted with 5 TOPS for a core that reaches 5.7, and 4 for one that reaches 4.5
        assert record.advertised.tops < tops < 1.08 * record.advertised.tops
        assert "rounds down" in record.advertised.notes
    else:
        assert tops == pytest.approx(record.advertised.tops, rel=ROUNDED.get(name, 0.02))


@pytest.mark.parametrize(
    ("mode", "gpu_mhz", "gpu", "dla"),
    [
        ("MAXN", 1300.5, 171, 105),
        ("MODE_50W", 828.75, 109, None),  # 92 TOPS of the DLA need 1400 MHz, and the mode's limit is 1369.6
        ("MODE_30W", 624.75, 41, 90),
        ("MODE_15W", None, None, 40),  # 14 TOPS of the GPU are of JetPack 5, which gates one more TPC
    ],
)
def test_published_tops_of_each_mode_of_agx_orin(
    mode: str, gpu_mhz: float | None, gpu: float | None, dla: float | None
) -> None:
    """NVIDIA's table (DLA_SW) is of JetPack 5, whose next clock steps are given here where they differ."""
    orin = board("agx-orin-64gb")
    found = orin.mode(mode)
    if gpu is not None and gpu_mhz is not None:
        tops = orin.gpu_tops(found.model_copy(update={"gpu_mhz": gpu_mhz}), "int8")
        assert tops is not None and 2 * tops == pytest.approx(gpu, rel=0.02)
    if dla is not None:
        tops = orin.dla_tops(found, "int8")
        assert tops is not None and 2 * 2 * tops == pytest.approx(dla, rel=0.02)


@pytest.mark.parametrize(
    ("name", "gb_s"),
    [
        ("jetson-nano-4gb", 25.6),
        ("jetson-tx2-8gb", 59.7),
        ("xavier-nx-8gb", 59.7),
        ("agx-xavier-32gb", 136.5),
        ("orin-nano-4gb", 34),
        ("orin-nano-4gb-super", 51),
        ("orin-nano-8gb", 68),
        ("orin-nano-8gb-super", 102),
        ("orin-nx-8gb", 102.4),
        ("orin-nx-16gb", 102.4),
        ("agx-orin-32gb", 204.8),
        ("agx-orin-64gb", 204.8),
        ("thor-t5000", 273),
    ],
)
def test_bandwidth_is_the_published_one(name: str, gb_s: float) -> None:
    """Published: https://developer.nvidia.com/embedded/jetson-modules."""
    record = board(name)
    assert record.bandwidth_gb_s(record.peak_mode) == pytest.approx(gb_s, rel=0.01)
