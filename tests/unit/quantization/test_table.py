"""The range table: what it answers, and a file that is read back exactly or refused by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgert._version import __version__
from edgert.errors import CalibrationError
from edgert.graph import Model
from edgert.quantization.calibration.ranges import RangeTable, load_table, save_table
from edgert.quantization.calibration.threshold import METHODS, ZERO_AMAX, threshold
from edgert.quantization.calibration.value_histogram import Histogram
from tests.helpers.errors import Exactly, raises
from tests.helpers.models import conv
from tests.unit.quantization.histograms import of

DIGEST = "5e" * 32
ODD = ("a:b/c", "", "dock\n\t\"'", "Größe 尺寸", "\ud800 alone", "tensors")


RNG = np.random.default_rng(5)
SMALL, HEAVY = of(RNG.normal(0, 1, 5000)), of(RNG.standard_t(2, 5000))
HISTOGRAMS = {"small": SMALL, "heavy": HEAVY, "zero": of(np.zeros(9, np.float32))}


def table(**changes: Any) -> RangeTable:
    return RangeTable(**{"model": DIGEST, "images": 64, "method": "mse", "histograms": HISTOGRAMS, **changes})


@pytest.mark.parametrize("method", METHODS)
def test_a_tensor_has_the_threshold_of_its_histogram(method: str) -> None:
    ranges = table(method=method)
    for name, histogram in HISTOGRAMS.items():
        assert ranges.amax(name) == ranges.amax([name]) == threshold(histogram, method)


def test_a_group_is_searched_on_all_its_values() -> None:
    both = threshold(Histogram.merged([SMALL, HEAVY]), "mse")
    ranges = table()
    assert ranges.amax(("small", "heavy")) == ranges.amax(["heavy", "small", "heavy"]) == both
    assert both not in (ranges.amax("small"), ranges.amax("heavy"))


def test_a_choice_stands_for_its_tensor_alone() -> None:
    ranges = table().with_chosen({"heavy": "percentile", "small": "mse"})
    assert ranges.chosen == {"heavy": "percentile"}
    assert ranges.amax("heavy") == threshold(HEAVY, "percentile")
    assert ranges.amax("small") == threshold(SMALL, "mse")
    assert ranges.with_method("minmax").amax("heavy") == HEAVY.amax


def test_a_group_of_different_choices_takes_the_widest() -> None:
    both = Histogram.merged([SMALL, HEAVY])
    found = {method: threshold(both, method) for method in ("mse", "percentile")}
    assert len(set(found.values())) == 2
    assert table().with_chosen({"heavy": "percentile"}).amax(["small", "heavy"]) == max(found.values())
    agreed = table().with_chosen({"heavy": "percentile", "small": "percentile"})
    assert agreed.amax(["small", "heavy"]) == found["percentile"]


def test_a_threshold_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []

    def search(histogram: Histogram, method: str) -> float:
        searched.append(method)
        return histogram.amax

    monkeypatch.setattr("edgert.quantization.calibration.ranges.threshold", search)
    ranges = table()
    assert ranges.amax("small") == ranges.amax("small") == SMALL.amax
    assert ranges.amax(["small", "heavy"]) == ranges.amax(("heavy", "small"))
    assert len(searched) == 2


def test_tensors_that_were_always_zero_are_reported() -> None:
    assert table().zero == ("zero",)
    assert table().amax("zero") == ZERO_AMAX


def test_an_unknown_tensor_is_refused_with_the_nearest() -> None:
    with pytest.raises(CalibrationError, match="'smal' has no range; did you mean 'small'"):
        table().amax(["small", "smal"])
    with pytest.raises(CalibrationError, match="threshold without tensors"):
        table().amax([])
    with pytest.raises(CalibrationError, match="'hevy' has no range"):
        table().with_chosen({"hevy": "minmax"})


def test_a_tensor_that_never_had_an_element_has_no_threshold(tmp_path: Path) -> None:
    ranges = table(histograms={**HISTOGRAMS, "void": Histogram()})
    with pytest.raises(CalibrationError, match="'void' has no range"):
        ranges.amax("void")
    assert ranges.amax(["void", "small"]) == ranges.amax("small")
    save_table(ranges, tmp_path / "ranges.json")
    assert load_table(tmp_path / "ranges.json") == ranges


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(CalibrationError, match="unknown method"):
        table(method="guess")
    with pytest.raises(CalibrationError, match="unknown method"):
        table().with_chosen({"small": "guess"})


def full() -> RangeTable:
    """A table with everything in it."""
    histograms = {**HISTOGRAMS, **{name: of(RNG.normal(0, 3, 100)) for name in ODD}}
    changes = {"chosen": {"heavy": "entropy", ODD[4]: "minmax"}, "warnings": ("one", "zwei ü"), "available": 250}
    return table(histograms=histograms, **changes)


def test_a_file_is_read_back_exactly(tmp_path: Path) -> None:
    ranges, path = full(), tmp_path / "new" / "ranges.json"
    save_table(ranges, path)
    again = load_table(path)
    assert again == ranges
    assert again.version == __version__
    names = [*ranges.histograms, ("small", "heavy")]
    assert [again.amax(name) for name in names] == [ranges.amax(name) for name in names]
    save_table(again, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_equal_tables_give_equal_bytes(tmp_path: Path) -> None:
    reverse = dict(reversed(HISTOGRAMS.items()))
    save_table(table(), tmp_path / "a.json")
    save_table(table(histograms=reverse), tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_person_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "ranges.json"
    save_table(full(), path)
    lines = path.read_text(encoding="ascii").splitlines()
    (line,) = [line for line in lines if line.startswith('  "heavy": {')]
    entry = json.loads(line.split(":", 1)[1].rstrip(","))
    assert np.float32(entry["amax"]) == threshold(HEAVY, "entropy")
    assert np.float32(entry["low"]) == HEAVY.low
    assert entry["method"] == "entropy"
    assert entry["digest"] == HEAVY.digest
    assert '"images": 64,' in lines
    assert '"available": 250,' in lines
    longest = max(len(line) for line in lines[: lines.index('"counts": {')])
    assert longest < 250


def model(digest: str) -> Model:
    made = conv()
    return Model(made.proto, made.path, digest)


def test_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ranges.json"
    save_table(table(), path)
    assert load_table(path, model(DIGEST)) == table()
    why = (DIGEST[:16], "ab" * 8)
    with raises(CalibrationError, "another model", why=why, where=Exactly(str(path)), fix="calibrate again"):
        load_table(path, model("ab" * 32))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with raises(CalibrationError, "cannot read ranges", what=str(path), why=True):
            load_table(path)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"tensors": {}}', "\xff\xfe", "[" * 100_000])
def test_another_kind_of_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ranges.json"
    path.write_text(text, encoding="latin-1")
    with raises(CalibrationError, "is not a range table", what=str(path)):
        load_table(path)


def stored(tmp_path: Path, **changes: Any) -> Path:
    """A file with other values at its top level."""
    path = tmp_path / "ranges.json"
    save_table(table(), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


def test_a_later_schema_is_refused(tmp_path: Path) -> None:
    with raises(CalibrationError, "schema 2", why="edgert 9.1 wrote them", fix="update edgert"):
        load_table(stored(tmp_path, schema=2, edgert="9.1", tensors=None))


def test_a_damaged_tensor_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ranges.json"
    save_table(table(), path)
    content = json.loads(path.read_text())
    content["counts"]["small"] = content["counts"]["heavy"]
    with raises(CalibrationError, "damaged", why="'small'", where=Exactly(str(path))):
        load_table(stored(tmp_path, counts=content["counts"]))
    del content["counts"]["small"]
    with raises(CalibrationError, "damaged", why="'small'"):
        load_table(stored(tmp_path, counts=content["counts"]))


@pytest.mark.parametrize(
    ("key", "value"),
    [("tensors", []), ("tensors", {"small": 1}), ("counts", None), ("images", "64"),
     ("warnings", "none"), ("warnings", [1]), ("model", None), ("available", "x"), ("method", ["mse"])],
)  # fmt: skip
def test_damage_elsewhere_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = stored(tmp_path, **{key: value})
    with raises(CalibrationError, where=Exactly(str(path))):
        load_table(path)
