"""Board files of the user's own, and all that can be wrong in them."""

from pathlib import Path

import pytest

from edgert.board.record import board_file, find_board, load_board
from edgert.errors import ConfigError
from edgert.installation import shipped

MODE_15W = """\
  - name: "15W"
    watts: 15
    cpu_cores: 4
    cpu_mhz: 1651.2
    sms: 4
    gpu_mhz: 612
    dla_cores: 2
    dla_mhz: 614.4
    emc_mhz: 3199
"""


def _own(folder: Path, *changes: tuple[str, str]) -> Path:
    """A copy of a shipped board under a name of its own, each change made once."""
    text = shipped("configs/boards/orin-nx-16gb.yaml").read_text(encoding="utf-8")
    for old, new in (("name: orin-nx-16gb\n", "name: mine\n"), *changes):
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def _mode(old: str, new: str) -> tuple[str, str]:
    """A change of the 15W mode."""
    assert old in MODE_15W
    return MODE_15W, MODE_15W.replace(old, new)


def test_a_board_is_found_by_name_or_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _own(tmp_path)
    assert find_board("orin-nx-16gb").name == "orin-nx-16gb"
    assert find_board("mine.yaml", tmp_path).title == "Jetson Orin NX 16GB"
    assert find_board(str(tmp_path / "mine.yaml")).name == "mine"
    monkeypatch.chdir(tmp_path)
    assert find_board("./mine.yaml", tmp_path / "elsewhere").name == "mine"  # typed by one who stands there
    assert board_file("orin-nx-16gb") == shipped("configs/boards/orin-nx-16gb.yaml")


def test_a_file_that_is_nowhere_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with pytest.raises(ConfigError, match="no board file") as caught:
        find_board("./mine.yaml", tmp_path / "elsewhere")
    assert "./mine.yaml" in caught.value.what
    assert str(tmp_path / "elsewhere") in caught.value.why and str(here) in caught.value.why
    assert "--yaml" in caught.value.fix


def test_a_board_of_ones_own_need_not_be_recognized_nor_advertised(tmp_path: Path) -> None:
    text = _own(tmp_path).read_text(encoding="utf-8")
    head, rest = text.split("match:\n")
    bare = head + rest[rest.index("memory:\n") :]
    start, end = bare.index("advertised:\n"), bare.index("modes:\n")
    (tmp_path / "mine.yaml").write_text(bare[:start] + bare[end:], encoding="utf-8")
    board = load_board(tmp_path / "mine.yaml")
    assert (board.match, board.advertised, board.default_mode) == (None, None, None)
    assert board.usual_mode.name == "MAXN"


def test_ones_own_measurements_are_a_source(tmp_path: Path) -> None:
    path = _own(tmp_path, ("  type: LPDDR5\n", "  type: LPDDR5\n  notes: soldered by us\n"))
    assert load_board(path).memory.notes == "soldered by us"


@pytest.mark.parametrize(
    ("change", "what", "fix"),
    [
        (_mode("gpu_mhz: 612", "gpu_mhz: -612"), "modes.2.gpu_mhz: cannot use -612", ""),
        (_mode("gpu_mhz: 612", "gpu_mhz: .inf"), "modes.2.gpu_mhz: cannot use inf", ""),
        (_mode("gpu_mhz: 612", "gpu_mhz: fast"), "modes.2.gpu_mhz: cannot use 'fast'", ""),
        (_mode("    gpu_mhz: 612\n", ""), "modes.2.gpu_mhz is missing", "add gpu_mhz:"),
        (_mode("sms: 4", "sms: 10"), "mode 15W: sms: 10 is impossible", "sms: 8 or less, or correct gpu.sms"),
        (_mode("gpu_mhz: 612", "gpu_mhz: 1200"), "mode 15W: gpu_mhz: 1200 is impossible", "gpu_mhz: 918 or less"),
        (_mode("cpu_cores: 4", "cpu_cores: 12"), "cpu_cores: 12 is impossible", "correct cpu.cores"),
        (_mode("dla_cores: 2", "dla_cores: 3"), "dla_cores: 3 is impossible", "dla_cores: 2 or less"),
        (_mode("dla_mhz: 614.4", "dla_mhz: 2000"), "dla_mhz: 2000 is impossible", "correct dla.max_mhz"),
        (_mode("emc_mhz: 3199", "emc_mhz: 4266"), "emc_mhz: 4266 is impossible", "correct memory.emc_max_mhz"),
        (_mode("emc_mhz: 3199", "emc_mhz: 2133"), "emc_mhz: 2133 is a cap", "emc_mhz: 3199"),
        (_mode('name: "15W"', "name: maxn"), "two modes are called 'maxn'", "rename or remove"),
        (_mode('name: "15W"', 'name: "MODE_10W"'), "two modes are called 'MODE_10W'", "rename or remove"),
        (_mode('name: "15W"', "name: 15"), "modes.2.name: cannot use 15", ""),
        (("  bytes: 16GiB", "  bytes: 0GiB"), "memory.bytes", ""),
        (("usable_bytes: 15388MiB", "usable_bytes: 17GiB"), "memory.usable_bytes: cannot use '17GiB'", ""),
        (("  bus_bits: 128\n", ""), "memory.bus_bits is missing", "add bus_bits:"),
        (("  cuda_cores: 1024", "  cuda_cores: 1001"), "gpu.cuda_cores: 1001 is not a multiple of 8 SMs", "correct"),
        (("  generation: 2", "  generation: null"), "dla.generation: null for a board with DLA cores", "1 (Xavier)"),
        (('  name: "15W"', "  name: 16W"), "default mode '16W' is not a mode of the board", "modes: MAXN, 10W"),
        (("emc_mhz, dla_mhz]", "emc_mhz, dla]"), "uncapped: 'dla' is not a clock", "clocks: cpu_mhz"),
        (("    - of: [emc_max_mhz]", "    - of: [emc_mhz]"), "origins of 'emc_mhz', which is not in memory", "keys:"),
        (("  confidence: high", "  confidence: sure"), "match.confidence: cannot use 'sure'", ""),
        (("    rail: VDD_IN", "    clocks: sideways\n    rail: VDD_IN"), "idle.0.clocks: cannot use 'sideways'", ""),
        (("    rail: VDD_IN", "    modes: [16W]\n    rail: VDD_IN"), "idle watts '16W' is not a mode", "modes: MAXN"),
        (
            _mode("emc_mhz: 3199", "emc_mhz: 3199\n    estimated: [second_dla_mhz]"),
            "estimated: 'second_dla_mhz' has no value",
            "",
        ),
        (("modes:\n", "mode:\n"), "unknown key 'mode'; did you mean 'modes'?", "known here"),
        (("  cores: 8", "  cors: 8"), "unknown key 'cors'; did you mean 'cores'?", "known here"),
        (("bytes: 16GiB", "bytes: 16"), "memory.bytes", ""),
        (("soc: tegra234\n", ""), "soc is missing", "add soc:"),
        (("name: mine\n", "name: orin-nx-8gb\n"), "board file has name: 'orin-nx-8gb'", "name: mine"),
    ],
)
def test_a_number_that_cannot_be(tmp_path: Path, change: tuple[str, str], what: str, fix: str) -> None:
    path = _own(tmp_path, change)
    with pytest.raises(ConfigError) as caught:
        load_board(path)
    errors = [caught.value, *caught.value.others]
    found = next((error for error in errors if what in error.what), None)
    assert found is not None, str(caught.value)
    assert found.where.startswith(f"{path}:") and fix in found.fix


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        (
            (("soc: tegra234\n", ""), ("  bus_bits: 128", "  bus_bits: -1"), ("  sms: 8", "  sms: many")),
            ["name", "bus_bits", "sms"],
        ),
        ((("  cuda_cores: 1024", "  cuda_cores: 1001"), _mode("sms: 4", "sms: 10")), ["cuda_cores", "sms"]),
    ],
)
def test_all_wrong_values_are_told_at_once_and_so_are_all_contradictions(
    tmp_path: Path, changes: tuple[tuple[str, str], ...], keys: list[str]
) -> None:
    path = _own(tmp_path, *changes)
    with pytest.raises(ConfigError) as caught:
        load_board(path)
    lines = [int(error.where.split(":")[1].split()[0]) for error in (caught.value, *caught.value.others)]
    written = path.read_text(encoding="utf-8").splitlines()
    assert [written[line - 1].strip().partition(":")[0] for line in lines] == keys


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = _own(tmp_path, ("  bus_bits: 128\n", "  bus_bits: 128\n  bus_bits: 64\n"))
    with pytest.raises(ConfigError) as caught:
        load_board(path)
    assert "'bus_bits' is written twice" in caught.value.why and caught.value.where.startswith(f"{path}:")
    assert "remove one" in caught.value.fix


def test_a_board_without_dla_has_no_generation(tmp_path: Path) -> None:
    path = _own(tmp_path, ("  generation: 2\n  cores: 2", "  generation: 2\n  cores: 0"))
    with pytest.raises(ConfigError) as caught:
        load_board(path)
    text = str(caught.value)
    assert "dla.generation: 2 for a board without DLA cores" in text and "dla_cores: 2 is impossible" in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "modes: 3\n",
        "modes: [1, {name: 2}]\ngpu: []\n",
        "- 1\n",
        "~\n",
        "3\n",
        "modes: &a [*a]\n",
        "gpu: &a {cpu: *a}\n",
        "name: !!python/object:os.system {}\n",
        "name: 2024-99-99\n",
        "? [a]\n: b\n",
        "name: [a, b\n",
    ],
)
def test_any_yaml_is_told_and_nothing_else_happens(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"board file|mine\.yaml"):
        load_board(path)
    with pytest.raises(ConfigError, match="cannot read board file"):
        load_board(tmp_path / "none.yaml")
