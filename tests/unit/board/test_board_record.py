"""The shipped boards: all of them are there and sound, and each is found by its name."""

import pytest

from edgert.board.record import board, boards
from edgert.errors import ConfigError

GIB = 2**30


def test_all_modules_are_there_each_under_its_own_name() -> None:
    names = [record.name for record in boards()]
    assert len(names) == 18 and len(set(names)) == 18
    assert {"jetson-nano-4gb", "xavier-nx-16gb", "orin-nx-16gb", "agx-orin-64gb", "thor-t5000"} <= set(names)


def test_a_record_holds_what_its_file_says() -> None:
    orin = board("orin-nx-16gb")
    assert (orin.soc, orin.memory.bytes, orin.cpu.cores) == ("tegra234", 16 * GIB, 8)
    assert (orin.gpu.compute, orin.gpu.sms, orin.dla.generation, orin.dla.cores) == ("8.7", 8, 2, 2)
    assert orin.jetpack.majors == (5, 6, 7)


def test_a_module_s_title_has_its_memory_and_a_dla_its_generation() -> None:
    for record in boards():
        assert (record.dla.generation is None) == (record.dla.cores == 0), record.name
        assert f"{record.memory.bytes // GIB}GB" in record.title or record.soc == "tegra264", record.name


def test_programs_have_a_little_less_memory_than_there_is() -> None:
    known = {record.name: record.memory for record in boards() if record.memory.usable_bytes is not None}
    assert len(known) == 10
    for name, memory in known.items():
        assert 0.9 * memory.bytes < memory.most_bytes < memory.bytes, name
        assert memory.origin("usable_bytes").source != memory.source, name
    assert board("xavier-nx-8gb").memory.most_bytes == 8 * GIB


def test_super_is_the_same_module_with_faster_firmware() -> None:
    fast = [record for record in boards() if record.match is not None and record.match.super]
    assert len(fast) == 4
    for record in fast:
        assert record.match is not None
        plain = board(record.name.removesuffix("-super"))
        assert plain.match is not None and plain.match.compatible == record.match.compatible
        assert (plain.memory.bytes, plain.memory.usable_bytes, plain.gpu.sms, plain.cpu.cores) == (
            record.memory.bytes,
            record.memory.usable_bytes,
            record.gpu.sms,
            record.cpu.cores,
        )


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no board 'orin-nx-16'; did you mean 'orin-nx-16gb'\?"):
        board("orin-nx-16")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        (
            "jetson-orin-nano",
            "; which one: orin-nano-4gb, orin-nano-4gb-super, orin-nano-8gb or orin-nano-8gb-super?",
        ),
        ("NVIDIA Jetson Orin NX 16GB Super", "; did you mean 'orin-nx-16gb-super'?"),
        ("jetson-nano", "; did you mean 'jetson-nano-4gb'?"),
        ("thor", "; which one: thor-t4000 or thor-t5000?"),
        ("nvidia", ""),
        ("raspberry", ""),
    ],
)
def test_a_name_that_says_too_little_is_answered_with_the_boards_it_fits(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        board(name)
    assert caught.value.what == f"no board {name!r}{hint}"
