"""Watts: what follows from a board's clocks, what is not known, and how predictions stand to what was published."""

from pathlib import Path

import pytest

from edgert.board.record import Board, board, boards
from edgert.errors import ConfigError
from edgert.placement.cost import power as watts
from tools.fitting import power as fitting


def drawn(name: str, mode: str) -> watts.Power:
    record = board(name)
    return watts.power(record, record.mode(mode))


def test_watts_fall_faster_than_the_clock_down_to_a_floor() -> None:
    fast, slow = drawn("agx-orin-64gb", "MAXN"), drawn("agx-orin-64gb", "MODE_50W")
    assert slow.gpu_w < fast.gpu_w * 816 / 1300.5
    assert watts.relative_energy(1.0) == 1.0
    assert watts.relative_energy(0.1) == watts.relative_energy(0.3) == pytest.approx(0.49)


def test_one_chip_draws_the_same_whatever_its_firmware_is_called() -> None:
    for plain, faster, mode in (
        ("orin-nx-16gb", "orin-nx-16gb-super", "25W"),
        ("orin-nx-16gb", "orin-nx-16gb-super", "10W"),
    ):
        assert drawn(plain, mode) == drawn(faster, mode)
    nano, nx = drawn("orin-nano-8gb-super", "15W"), drawn("orin-nx-16gb", "15W")
    assert nano.gpu_w == pytest.approx(2 * nx.gpu_w)  # twice the SMs at the same clock


def test_a_board_without_dla_draws_nothing_for_it() -> None:
    assert drawn("orin-nano-8gb", "15W").dla_w == 0


def test_cores_and_the_decoder_draw_while_they_are_busy() -> None:
    made = drawn("orin-nx-16gb", "15W")
    assert made.unit_w("cpu") == made.cpu_w > 0 and made.unit_w("nvdec") == made.decoder_w
    assert made.unit_w("nvenc") == made.unit_w("gpu") == 0  # not published; in the steps
    faster = drawn("orin-nx-16gb", "MAXN")
    assert faster.cpu_w / made.cpu_w > 1984 / 1651.2


def test_launches_draw_nothing_and_products_do() -> None:
    made = watts.Power(static_w=5, gpu_w=10, dla_w=2, dram_pj_per_byte=100, math_w=6)
    assert made.energy_mj("gpu", 2.0, 1e7) == pytest.approx(20 + 1)
    assert made.energy_mj("gpu", 2.0, 0.0, peak_ms=1.0) == pytest.approx(26)
    assert made.energy_mj("dla0", 2.0, 0.0, peak_ms=1.0) == pytest.approx(4)


@pytest.mark.parametrize("name", ["jetson-nano-4gb", "jetson-tx2-8gb"])
def test_what_nobody_published_is_not_known(name: str) -> None:
    record = board(name)
    made = watts.power(record, record.usual_mode)
    assert not made.is_known and "GPU" in made.unknown
    assert made.static_w == record.idle_w(record.usual_mode)


def test_a_board_that_nobody_read_idle_is_not_known() -> None:
    record = board("orin-nx-16gb").model_copy(update={"idle": (), "name": "mine"})
    made = watts.power(record, record.usual_mode)
    assert not made.is_known and made.unknown == ("idle",)
    assert "watts of mine are unknown" in " ".join(watts.about_watts((record,)))


def test_a_chip_that_nobody_read_is_told() -> None:
    record = board("orin-nx-16gb").model_copy(update={"soc": "tegra235"})
    with pytest.raises(ConfigError, match=r"no power figures for chip 'tegra235'.*tegra234"):
        watts.power(record, record.usual_mode)


def test_a_damaged_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "costs").mkdir()
    good = (Path(__file__).parents[4] / "configs/costs/power.yaml").read_text(encoding="utf-8")
    (tmp_path / "costs/power.yaml").write_text(good.replace("overhead: 1", "overhead: -1", 1), encoding="utf-8")
    monkeypatch.setattr(watts, "folder", lambda: tmp_path / "costs")
    watts.power_cost.cache_clear()
    with pytest.raises(ConfigError, match=r"file of watts at .*overhead") as caught:
        watts.power_cost("tegra234")
    assert "power.yaml" in (caught.value.where or "")
    monkeypatch.undo()
    watts.power_cost.cache_clear()


def test_the_plug_gives_more_than_the_module_takes_and_only_where_it_was_read() -> None:
    agx = watts.wall_w(board("agx-orin-64gb"), 20.0)
    assert agx is not None and 26 < agx < 36
    assert watts.wall_w(board("orin-nx-16gb"), 20.0) is None
    assert watts.wall_w(board("agx-xavier-32gb"), 20.0) is None  # only with all peripherals off
    assert watts.wall_w(board("jetson-nano-4gb"), 5.0) is None


def test_what_is_assumed_is_said() -> None:
    thor = watts.about_watts((board("thor-t5000"),))
    assert thor[0] == watts.MODULE_WATTS
    assert any("thor-t5000 70W: estimated" in note for note in thor)
    assert any("one reading of its rail" in note for note in thor)
    every = watts.about_watts(boards())
    assert any("tegra210" in note and "not known" in note for note in every)
    assert not any("decoder" in note for note in every)


@pytest.mark.parametrize("record", boards(), ids=lambda record: record.name)
def test_idle_is_near_every_published_reading(record: Board) -> None:
    assert record.idle
    for mode in record.modes:
        for line in record.idle:
            alike = [other for other in record.idle if other.clocks == line.clocks]
            own = [other for other in alike if mode.name in other.modes]
            if line in (own or [other for other in alike if not other.modes]):
                assert record.idle_w(mode) == pytest.approx(line.watts, rel=0.15)


@pytest.mark.parametrize("soc", ["tegra194", "tegra234"])
def test_loaded_watts_are_near_what_was_published(soc: str) -> None:
    chip = watts.power_cost(soc)
    assert chip.wall is not None and chip.accuracy is not None
    rows = fitting.draws(soc)
    errors = sorted(abs(row.predicted_w(chip.cost, chip.wall.carrier_w) / row.watts - 1) for row in rows)
    assert errors[len(errors) // 2] <= 0.15 and errors[int(0.9 * len(errors))] <= 0.4
    assert chip.accuracy.median <= 0.15 and chip.accuracy.p90 <= 0.4


def test_watts_of_a_mostly_idle_board_are_no_surer_than_idle_readings() -> None:
    record = board("agx-xavier-32gb")
    mode, loaded = record.mode("MODE_30W_ALL"), watts.power_cost(record.soc).accuracy
    idle_w = record.idle_w(mode)
    assert loaded is not None and idle_w is not None and loaded.p90 < 0.15
    assert watts.power_error(record, mode, idle_w) == pytest.approx(0.15)
    assert watts.power_error(record, mode, 10 * idle_w) == loaded.p90
    thor = board("thor-t5000")
    assert watts.power_error(record, mode, None) is watts.power_error(thor, thor.mode("120W"), 30) is None


def test_a_decoder_draws_what_neither_gpu_nor_cpu_explains() -> None:
    assert fitting.decoder_w() == pytest.approx(0.523 - 0.409 + 0.33)
