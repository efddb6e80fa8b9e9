"""Board files: all of them are sound, and mistakes in them are told with the file and the key."""

from pathlib import Path

import pytest

from edgert.board.record import board, boards, load_board
from edgert.errors import ConfigError
from edgert.installation import shipped

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


def test_what_a_chip_fixes_is_the_same_on_all_its_modules() -> None:
    compute = {(record.soc, record.gpu.compute, record.gpu.architecture) for record in boards()}
    assert len(compute) == len({record.soc for record in boards()}) == 5
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


def _changed(tmp_path: Path, old: str, new: str) -> Path:
    text = shipped("configs/boards/orin-nx-16gb.yaml").read_text()
    assert old in text
    path = tmp_path / "orin-nx-16gb.yaml"
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  cores: 8", "  cors: 8", "unknown key 'cors'; did you mean 'cores'?"),
        ("bytes: 16GiB", "bytes: 16", "no unit; expected one of"),
        ("  sms: 8", "  sms: many", "gpu.sms"),
        ("  sms: 8", "  sms: -1", "gpu.sms"),
        ("  confidence: high", "  confidence: certain", "confidence"),
        ("soc: tegra234\n", "", "soc is missing"),
        ("soc: tegra234\n", "sock: tegra234\n", "did you mean 'soc'?"),
        ("name: orin-nx-16gb", "name: orin-nx-8gb", "board file has name: 'orin-nx-8gb'"),
    ],
)
def test_a_mistake_names_file_and_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = _changed(tmp_path, old, new)
    with pytest.raises(ConfigError) as caught:
        load_board(path)
    assert message in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(("text", "message"), [("a: [", "not valid YAML"), ("[1]", "top level"), ("", "is empty")])
def test_not_a_board_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_board(path)


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read board file"):
        load_board(tmp_path / "none.yaml")
