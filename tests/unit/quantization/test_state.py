"""The file from which a calibration goes on."""

import json
import logging
from pathlib import Path

import pytest

from edgert.errors import CalibrationError
from edgert.quantization.calibration import range_calibrator
from edgert.quantization.calibration.range_calibrator import Journal, Tally, fingerprint
from tests.helpers.feeds import Noise, Order
from tests.unit.quantization.histograms import of


def tally(done: int = 8) -> Tally:
    return Tally(done, {"a": of(1, -2, 300)}, {"a": of(1)}, settled=True)


def interrupted(path: Path, key: str, kept: Tally) -> None:
    with pytest.raises(KeyboardInterrupt), Journal(path, key) as journal:
        journal.update(kept)
        raise KeyboardInterrupt


def test_an_interrupted_calibration_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "state"
    interrupted(path, "k", tally())
    found = Journal(path, "k").tally
    assert found == tally()
    assert [item.name for item in path.parent.iterdir()] == ["state"]


def test_a_finished_calibration_leaves_nothing(tmp_path: Path) -> None:
    interrupted(tmp_path / "state", "k", tally())
    with Journal(tmp_path / "state", "k"):
        pass
    assert list(tmp_path.iterdir()) == []
    with Journal(tmp_path / "state", "k") as journal:  # nothing was there, nothing is left
        assert journal.tally == Tally()
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_written_every_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    journal = Journal(path, "k")
    journal.update(tally())
    assert not path.exists()
    monkeypatch.setattr(range_calibrator, "_SAVE_S", -1.0)
    journal.update(tally())
    assert Journal(path, "k").tally == tally()


def test_another_key_starts_over_and_reports_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    interrupted(tmp_path / "state", "k", tally())
    with caplog.at_level(logging.WARNING, "edgert.quantize"):
        assert Journal(tmp_path / "state", "other").tally == Tally()
    assert "another model, other images or other settings" in caplog.text


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"kind": "accuracy"}', "\0\1"])
def test_another_file_starts_over(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "state"
    path.write_text(text)
    with caplog.at_level(logging.WARNING, "edgert.quantize"):
        assert Journal(path, "k").tally == Tally()
    assert "started over" in caplog.text


def test_a_damaged_histogram_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    interrupted(path, "k", tally())
    path.write_text(json.dumps({**json.loads(path.read_text()), "counts": {"a": {}}}))
    with pytest.raises(CalibrationError, match="histogram is damaged"):
        Journal(path, "k")


def test_the_fingerprint_keeps_models_tensors_images_and_settings_apart() -> None:
    def digest(model: str = "m", tensors: tuple[str, ...] = ("a",), feed: object = None, method: str = "mse") -> str:
        return fingerprint(model, tensors, feed or Noise(9), {"method": method})  # type: ignore[arg-type]

    others = [
        digest("n"),
        digest(tensors=("b",)),
        digest(method="entropy"),
        digest(feed=Noise(10)),
        digest(feed=Noise(9, growth=0.1)),  # the same names, preprocessed otherwise
        digest(feed=Order(Noise(9), [0, 2, 1, 3, 4, 5, 6, 7, 8])),
    ]
    assert digest() == digest()
    assert len({digest(), *others}) == 7
