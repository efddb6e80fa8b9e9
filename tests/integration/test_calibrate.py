"""Calibration end to end on ONNX Runtime: what is counted, what it does not depend on, how it stops and goes on."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgert.backend.ort import Function
from edgert.errors import CalibrationError
from edgert.graph import Model, extract, inputs, load, read, write
from edgert.quantization.calibrated import prepare
from edgert.quantization.calibration import walk
from edgert.quantization.calibration.range_calibrator import calibrate
from edgert.quantization.calibration.ranges import RangeTable, save_table
from edgert.quantization.calibration.value_histogram import Histogram
from tests.helpers.evaluation_data import data
from tests.helpers.feeds import Broken, Noise, Order
from tests.helpers.models import Typed, make, node


def small() -> Model:
    """A residual block: convolutions, a Concat, a Reshape and an output that nothing else reads."""
    random = np.random.default_rng(0)
    nodes = [
        node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w2"], ["c"], pads=[1, 1, 1, 1]),
        node("Add", ["b", "c"], ["d"]),
        node("Concat", ["d", "b"], ["e"], axis=1),
        node("Reshape", ["e", "shape"], ["y"]),
        node("ArgMax", ["y"], ["n"]),
    ]
    weights = {
        "w1": random.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "w2": random.standard_normal((4, 4, 3, 3)).astype(np.float32),
        "shape": np.array([1, 8, 64]),
    }
    return prepare(make(nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 8, 64), "n": Typed("int64", None)}, weights))


def saved(table: RangeTable, folder: Path) -> bytes:
    save_table(table, folder / "ranges.json")
    return (folder / "ranges.json").read_bytes()


def stream(feed: Noise) -> Any:
    return (feed.feeds(number) for number in range(len(feed)))


def shuffled(feed: Noise) -> Order:
    return Order(feed, np.random.default_rng(1).permutation(len(feed)).tolist())


# What is counted


@pytest.mark.parametrize("slice_bytes", [1, 4096, 2**30])
def test_histograms_are_those_of_the_whole_models_tensors(slice_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, feed = small(), Noise(3)
    names = ["a", "b", "c", "d", "e", "y"]
    whole = Function(write(extract(read(model), names), model), fused=False)
    expected = {name: Histogram() for name in [*names, "x"]}
    for number in range(3):
        for name, array in {**whole(feed.feeds(number)), **feed.feeds(number)}.items():
            expected[name].add(array)
    monkeypatch.setattr(walk, "SLICE_BYTES", slice_bytes)
    observer = walk.Observer(model)
    counted = observer.count([(feed.name(number), feed.feeds(number)) for number in range(3)])
    assert observer.counted == ("x", "a", "b", "c", "d")  # e and y hold the values of d and b
    for name, parts in observer.parts.items():
        assert Histogram.merged([counted[part] for part in parts]) == expected[name], name


def test_only_wanted_tensors_are_in_the_table() -> None:
    table = calibrate(small(), Noise(8), tensors=["y", "a"], threads=1)
    assert list(table.histograms) == ["y", "a"]
    assert table.histograms["y"].values == 8 * 8 * 64
    with pytest.raises(CalibrationError, match="'n'"):
        calibrate(small(), Noise(8), tensors=["n"])


def test_slices_do_not_change_a_bit_of_a_real_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = prepare(load(data("models", "nanodet_m_320.onnx")))
    images = [("p", Noise(1, inputs(model)[0].shape, inputs(model)[0].name).feeds(0))]  # type: ignore[arg-type]
    found = []
    for size in (2**21, 2**40):
        monkeypatch.setattr(walk, "SLICE_BYTES", size)
        found.append(walk.Observer(model).count(images))
    assert found[0] == found[1]


# What the result does not depend on


def test_ranges_do_not_depend_on_order_threads_or_processes(tmp_path: Path) -> None:
    model, feed = small(), Noise(21)
    runs: dict[str, Callable[[], RangeTable]] = {
        "one thread": lambda: calibrate(model, feed, early_stop=False, threads=1),
        "three threads": lambda: calibrate(model, feed, early_stop=False, threads=3),
        "shuffled": lambda: calibrate(model, shuffled(feed), early_stop=False),
        "a stream": lambda: calibrate(model, stream(feed), early_stop=False),
        "2 processes": lambda: calibrate(model, feed, early_stop=False, workers=2),
        "a stream, 2 processes": lambda: calibrate(model, stream(feed), early_stop=False, workers=2),
    }
    found = {name: saved(run(), tmp_path) for name, run in runs.items()}
    assert {name for name, text in found.items() if text != found["one thread"]} == set()


def test_nor_do_those_of_a_real_model(tmp_path: Path) -> None:
    model = prepare(load(data("models", "mobilenet_v1_025_224.onnx")))
    feed = Noise(12, (1, 3, 224, 224), "input")
    first = saved(calibrate(model, feed, early_stop=False, threads=1), tmp_path)
    assert saved(calibrate(model, stream(feed), early_stop=False, threads=2), tmp_path) == first
    assert saved(calibrate(model, shuffled(feed), early_stop=False, workers=3), tmp_path) == first


def test_early_stop_does_not_depend_on_them_either(tmp_path: Path) -> None:
    model, feed = small(), Noise(300, growth=0.0)
    rule: dict[str, Any] = {"method": "minmax"}
    first = calibrate(model, feed, **rule, threads=1)
    assert 64 <= first.images < 300
    assert first.images % 32 == 0
    assert first.available == 300
    assert any(f"settled after {first.images} images" in line for line in first.warnings)
    assert saved(calibrate(model, feed, **rule, threads=3), tmp_path) == saved(first, tmp_path)
    streamed = calibrate(model, stream(feed), **rule)
    assert streamed.histograms == first.histograms
    assert streamed.available is None


def test_ranges_that_keep_growing_do_not_stop_early() -> None:
    table = calibrate(small(), Noise(100), method="minmax")
    assert (table.images, table.available, table.warnings) == (100, 100, ())


def test_images_that_come_as_they_are_made_are_not_kept() -> None:
    started: list[int] = []
    done: list[int] = []
    feed = Noise(200)

    def make_images() -> Any:
        for number in range(200):
            started.append(number)
            ahead.append(len(started) - (done[-1] if done else 0))
            yield feed.feeds(number)

    ahead: list[int] = []
    calibrate(small(), make_images(), threads=1, early_stop=False, bar=lambda _, n, total: done.append(n))
    assert len(started) == done[-1] == 200
    assert max(ahead) <= 12


# Stopping and going on


def stopping_at(number: int, stop: Callable[[], None]) -> Callable[[str, int, int], None]:
    return lambda _, done, total: stop() if done == number else None


@pytest.mark.parametrize("number", [4, 32, 44, 64, 68])
@pytest.mark.parametrize("early_stop", [False, True])
def test_a_stopped_calibration_goes_on_to_the_same_result(number: int, early_stop: bool, tmp_path: Path) -> None:
    model, stop, state = small(), threading.Event(), tmp_path / "state"
    settings: dict[str, Any] = {"early_stop": early_stop, "method": "mse"}
    whole = calibrate(model, Noise(90, growth=0.001), **settings)
    feed = Noise(90, growth=0.001)
    with pytest.raises(CalibrationError, match=f"stopped after {number} images"):
        calibrate(model, feed, **settings, state=state, stop=stop, bar=stopping_at(number, stop.set))
    assert state.exists()
    feed.asked.clear()
    assert saved(calibrate(model, feed, **settings, state=state), tmp_path) == saved(whole, tmp_path)
    assert not state.exists()
    assert sorted(set(range(number)).intersection(feed.asked)) == sorted({0, 45}.intersection(range(number)))  # its key


def interrupt() -> None:
    raise KeyboardInterrupt


def test_ctrl_c_keeps_what_was_counted(tmp_path: Path) -> None:
    model, state = small(), tmp_path / "state"
    with pytest.raises(KeyboardInterrupt):
        calibrate(model, Noise(40), state=state, bar=stopping_at(16, interrupt))
    first: list[int] = []
    table = calibrate(model, Noise(40), state=state, bar=lambda _, done, total: first.append(done))
    assert first[0] == 20
    assert table.histograms == calibrate(model, Noise(40)).histograms


def test_state_of_other_images_is_started_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, state = small(), tmp_path / "state"
    with pytest.raises(KeyboardInterrupt):
        calibrate(model, Noise(40), state=state, bar=stopping_at(16, interrupt))
    with caplog.at_level(logging.WARNING, "edgert.quantize"):
        table = calibrate(model, Noise(40, growth=0.2), state=state)
    assert "started over" in caplog.text
    assert table.histograms == calibrate(model, Noise(40, growth=0.2)).histograms


def test_what_is_streamed_has_no_state(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="cannot be resumed"):
        calibrate(small(), stream(Noise(40)), state=tmp_path / "state")


# What is refused, and what is worth a warning


@pytest.mark.parametrize("count", [0, 1, 7])
def test_too_few_images_are_refused(count: int) -> None:
    for feed in (Noise(count), stream(Noise(count))):
        with pytest.raises(CalibrationError, match="no images" if not count else f"{count} images? .* too few"):
            calibrate(small(), feed)


def test_few_images_are_worth_a_warning() -> None:
    (line,) = calibrate(small(), Noise(8)).warnings
    assert line.startswith("only 8 images")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_named(value: float) -> None:
    with pytest.raises(CalibrationError, match=r"tensor 'x' .* image 'noise-9'"):
        calibrate(small(), Broken(20, victim=9, value=value))


def test_overflow_inside_the_model_is_named(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with pytest.raises(CalibrationError, match=r"tensor 'a' .* image 'noise-9'"):
        calibrate(small(), Broken(20, victim=9, value=3e38), state=state)
    assert state.exists()  # what came before is kept


def test_a_image_that_does_not_fit_is_named() -> None:
    with pytest.raises(CalibrationError, match="image 'noise-0' does not fit input 'x'") as caught:
        calibrate(small(), Noise(8, (1, 3, 8, 9)))
    assert "float32[1, 3, 8, 9]" in caught.value.why
    with pytest.raises(CalibrationError, match="nothing for input 'x'"):
        calibrate(small(), Noise(8, input="z"))


def test_a_tensor_of_zeros_is_worth_a_warning() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["dead"], pads=[1, 1, 1, 1]),
        node("Relu", ["dead"], ["y"]),
    ]
    model = prepare(make(nodes, {"x": (1, 3, 8, 8)}, {"y": None}, {"w": np.zeros((4, 3, 3, 3), np.float32)}))
    table = calibrate(model, Noise(40))
    assert table.zero == ("dead", "y")
    assert any("tensor 'dead' and 1 more was 0 in all images" in line for line in table.warnings)
    assert table.amax("y") > 0
