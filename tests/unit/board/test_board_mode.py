"""Power modes: found by name, and what they leave of a board."""

import pytest

from edgert.board.record import board, boards, data_sheet, numbers
from edgert.cli import boards_command
from edgert.errors import ConfigError


@pytest.mark.parametrize("name", ["15W", "15w", " 15W ", "MODE_15W"])
def test_names_are_found_however_they_are_written(name: str) -> None:
    assert board("orin-nx-16gb").mode(name).name == "15W"
    assert board("agx-orin-64gb").mode(name).name == "MODE_15W"


def test_a_number_is_no_name() -> None:
    """nvpmodel's number 0 is MAXN here and 15W on another board."""
    with pytest.raises(ConfigError, match="orin-nx-16gb has no power mode '0'"):
        board("orin-nx-16gb").mode("0")
    assert not board("orin-nx-16gb").has_mode("0") and board("orin-nx-16gb").has_mode("maxn")


def test_an_unknown_mode_is_answered_with_the_nearest_and_all() -> None:
    with pytest.raises(ConfigError) as caught:
        board("agx-orin-64gb").mode("maxm")
    assert caught.value.what == "agx-orin-64gb has no power mode 'maxm'; did you mean 'MAXN'?"
    assert caught.value.fix == "modes: MAXN, MODE_15W, MODE_30W, MODE_50W"


def test_the_mode_a_board_boots_into() -> None:
    assert board("orin-nano-8gb-super").usual_mode.name == "25W"
    assert board("thor-t4000").default_mode is None
    assert board("thor-t4000").usual_mode.name == "unknown"


def test_a_mode_scales_with_clocks_and_with_what_is_switched_on() -> None:
    orin = board("orin-nx-16gb")
    small, large = orin.mode("15W"), orin.mode("25W")
    assert (small.sms, large.sms) == (4, 8)
    assert orin.gpu_tops(small, "int8") == pytest.approx(4 * 612 * 4096 / 1e6)
    assert orin.gpu_tops(large, "fp16") == pytest.approx(8 * 408 * 2048 / 1e6)
    assert orin.gpu_tops(large, "fp32") == pytest.approx(8 * 408 * 256 / 1e6)
    assert orin.bandwidth_gb_s(orin.mode("10W")) == pytest.approx(2133 * 2 * 16 / 1000)


def test_a_second_dla_core_may_be_slower() -> None:
    orin = board("orin-nx-16gb-super")
    mode = orin.mode("15W")
    assert [mode.dla_clock_mhz(core) for core in range(3)] == [614.4, 115, None]
    assert orin.dla_tops(mode, "int8", 0) == pytest.approx(10.07, abs=0.01)
    assert orin.dla_tops(mode, "int8", 1) == pytest.approx(115 * 16384 / 1e6)
    assert orin.dla_tops(mode, "int8", 2) is None


def test_what_nobody_published_is_unknown_not_zero() -> None:
    orin, nano = board("agx-orin-64gb"), board("jetson-nano-4gb")
    assert orin.dla_tops(orin.usual_mode, "fp16") is None and orin.dla_tops(orin.usual_mode, "fp32") is None
    assert nano.gpu_tops(nano.usual_mode, "int8") is None and nano.dla_tops(nano.usual_mode, "int8") is None
    assert nano.gpu_tops(nano.usual_mode, "fp16") == pytest.approx(0.472, abs=0.001)
    dark = orin.usual_mode.model_copy(update={"sms": None, "gpu_mhz": None, "emc_mhz": None})
    assert dark.unknown == ("sms", "gpu_mhz", "emc_mhz")
    assert orin.gpu_tops(dark, "int8") is None and orin.bandwidth_gb_s(dark) is None
    assert orin.usual_mode.unknown == ()


def test_estimated_modes_of_thor_follow_from_published_speed() -> None:
    """2070 sparse FP4 TFLOPS of 20 SMs at 1575 MHz; a T4000 has 1200 at 70 W."""
    t5000, t4000 = board("thor-t5000"), board("thor-t4000")
    full = t5000.gpu_tops(t5000.mode("MAXN"), "int8") or 0.0
    for record, name in ((t4000, "unknown"), (t5000, "70W")):
        mode = record.mode(name)
        assert {"sms", "gpu_mhz", "emc_mhz"} <= set(mode.estimated) and mode.confidence == "low"
        assert 2070 * (record.gpu_tops(mode, "int8") or 0.0) / full == pytest.approx(1200, rel=0.01)
    assert t5000.mode("MAXN").estimated == () and t5000.mode("120W").estimated == ("cpu_mhz",)


def test_what_follows_from_an_estimate_is_marked_in_every_table() -> None:
    t5000, t4000 = board("thor-t5000"), board("thor-t4000")
    listed = dict(zip(boards_command.BOARD_HEADINGS, boards_command.board_row(t4000), strict=True))
    assert (listed["GPU SMs @ MHz"], listed["INT8 TOPS"], listed["GB/s"]) == ("12 @ ~1520", "~298.8", "~273.0")
    assert "~" not in "".join(boards_command.board_row(t5000))  # of its fastest mode everything is published
    rows = {mode.name: " ".join(boards_command.mode_row(t5000, mode)) for mode in t5000.modes}
    assert "~14 @ ~1575 ~361.3 / ~180.6 ~273.0" in rows["90W"] and "~" not in rows["MAXN"]
    assert rows["120W"].count("~") == 1
    assert not [one.name for one in boards() if "~" in "".join(boards_command.board_row(one)) and one is not t4000]


def test_idle_watts_are_those_that_were_read() -> None:
    nx, agx, nano = board("orin-nx-16gb"), board("agx-orin-64gb"), board("orin-nano-8gb-super")
    assert nx.idle_w(nx.mode("15W")) == pytest.approx((4.6 + 5.3) / 2)
    assert nx.idle_w(nx.mode("15W"), "up") is None
    assert nano.idle_w(nano.mode("15W"), "down") == pytest.approx(4.6)
    assert nano.idle_w(nano.mode("15W"), "up") == pytest.approx(5.97)
    assert nano.idle_w(nano.mode("15W")) == pytest.approx((4.6 + 5.97) / 2)
    assert agx.idle_w(agx.mode("MODE_15W")) == pytest.approx(6.76)  # of that mode alone
    assert agx.idle_w(agx.mode("MODE_30W")) == pytest.approx(9.43)
    assert agx.model_copy(update={"idle": ()}).idle_w(agx.mode("MAXN")) is None


def test_xavier_knows_fp16_on_the_dla() -> None:
    xavier = board("agx-xavier-32gb")
    assert xavier.dla_tops(xavier.mode("maxn"), "fp16") == pytest.approx(2.86, abs=0.01)


def test_a_clock_left_free_is_known_as_well_as_the_maximum() -> None:
    found = {number.key: number for number in numbers(board("orin-nx-16gb"))}
    assert found["modes.MAXN.dla_mhz"].origin.confidence == "low"
    assert found["modes.15W.dla_mhz"].origin.confidence == "high"
    assert "dla.max_mhz" in found and not any("dla_" in n.key for n in numbers(board("orin-nano-8gb")))


def test_a_data_sheet_is_plain_and_holds_what_follows() -> None:
    sheet = data_sheet(board("orin-nx-16gb-super"))
    mode = sheet["modes"][2]
    assert mode["name"] == "15W" and mode["derived"]["bandwidth_gb_s"] == pytest.approx(102.4, rel=0.001)
    assert mode["derived"]["dla_tops"]["int8"] == pytest.approx([10.066, 1.884], abs=0.001)
    assert mode["derived"]["dla_tops"]["fp16"] == [None, None]
    assert sheet["derived"]["gpu_tops"]["int8"] == pytest.approx(38.4, abs=0.05)
    assert sheet["memory"]["bytes"] == 16 * 2**30
