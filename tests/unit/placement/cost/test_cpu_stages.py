"""What stages take of a board's cores and units for video."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgert.board.record import boards, find_board
from edgert.errors import ConfigError
from edgert.installation import data_folder
from edgert.placement.cost import cpu_stages
from edgert.placement.cost.cpu_stages import NVDEC, NVENC, cpu_costs


def test_every_board_has_a_core_and_units_that_are_known_or_said_to_be_unknown() -> None:
    costs = cpu_costs()
    for board in boards():
        assert board.cpu.model in costs.cores and board.name in costs.video
        for mode in board.modes:
            slowdown = costs.slowdown(board, mode)
            assert (slowdown is None) == (mode.cpu_mhz is None)
            assert slowdown is None or 0.3 < slowdown < 20


def test_a_slower_clock_takes_longer_in_proportion() -> None:
    board, costs = find_board("orin-nx-16gb"), cpu_costs()
    fast, slow = board.mode("MAXN"), board.mode("10W")
    assert fast.cpu_mhz is not None and slow.cpu_mhz is not None
    ratio = (costs.slowdown(board, slow) or 0.0) / (costs.slowdown(board, fast) or 1.0)
    assert ratio == pytest.approx(fast.cpu_mhz / slow.cpu_mhz)


def test_a_unit_for_video_takes_as_many_streams_as_are_published() -> None:
    costs, orin = cpu_costs(), find_board("orin-nx-16gb")
    assert costs.unit_ms(orin, NVDEC, 1.92 * 1.08) == pytest.approx(1e3 / 30 / 18)
    assert costs.unit_ms(orin, NVENC, 1.92 * 1.08) == pytest.approx(1e3 / 30 / 12)
    assert costs.unit_ms(find_board("orin-nano-8gb"), NVENC, 1.0) is None  # it has none
    assert costs.unit_ms(find_board("jetson-tx2-8gb"), NVDEC, 1.0) is None  # it is not published


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [("error: 0.4", "error: -1", "error"), ("mips: 1719", "mips: 0", "cores"), ("decode: 8", "decode: many", "video")],
)
def test_a_damaged_file_names_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, key: str
) -> None:
    text = (data_folder("configs") / "costs" / "cpu.yaml").read_text(encoding="utf-8")
    (tmp_path / "costs").mkdir()
    (tmp_path / "costs" / "cpu.yaml").write_text(text.replace(old, new), encoding="utf-8")
    monkeypatch.setattr(cpu_stages, "data_folder", lambda _: tmp_path)
    with pytest.raises(ConfigError, match=f"costs of stages at {key}") as caught:
        cpu_costs.__wrapped__()
    assert "cpu.yaml" in caught.value.where
