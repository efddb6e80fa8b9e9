"""Noise of outputs, and what ``edgert eval`` says of a version that agrees by chance."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

from edgert.backend.ort import Function
from edgert.cli import app
from edgert.config import TaskConfig
from edgert.graph import to_bytes
from edgert.quantization.evaluate import EvaluateOptions, Evaluation, evaluate
from edgert.quantization.evaluator import is_compared
from edgert.quantization.quantization_error import is_clear, noise_share, noisy_outputs, output_noise
from tests.helpers.models import constant


def outputs(**arrays: list[float] | np.ndarray) -> list[dict[str, np.ndarray]]:
    """One image's outputs per entry along the first axis."""
    count = len(next(iter(arrays.values())))
    return [{name: np.asarray(array[n], np.float32)[None] for name, array in arrays.items()} for n in range(count)]


def test_equal_outputs_are_no_noise_and_others_at_most_all_noise() -> None:
    true = outputs(y=[[1.0, 5.0], [3.0, -2.0]])
    assert noise_share(true, true) == 0.0
    assert noise_share(true, outputs(y=[[1e6, 5.0], [3.0, -2.0]])) == pytest.approx(1.0, abs=1e-6)


def test_as_much_noise_as_signal_is_a_half() -> None:
    true = outputs(y=[[1.0, -1.0], [1.0, -1.0]])  # variance 1
    assert noise_share(true, outputs(y=[[2.0, -2.0], [2.0, -2.0]])) == pytest.approx(0.5)


def test_what_is_a_constant_is_no_signal() -> None:
    true = outputs(y=[[7.0, 7.0], [7.0, 7.0]])
    assert noise_share(true, true) == 0.0
    assert noise_share(true, outputs(y=[[7.0, 7.1], [7.0, 7.0]])) == pytest.approx(1.0)


def test_a_row_that_one_version_alone_has_counts_as_zeros_in_the_other() -> None:
    """Each version finds a number of boxes of its own, in each image."""
    true = [{"y": np.array([[1.0, -1.0]]).T}, {"y": np.array([[1.0, -1.0, 1.0, -1.0]]).T}]
    assert noise_share(true, true) == 0.0
    filled = [{"y": np.pad(one["y"], ((0, 4 - len(one["y"])), (0, 0)))} for one in true]
    assert noise_share(true, filled) == 0.0
    fewer = [true[0], {"y": true[1]["y"][:3]}]
    assert noise_share(true, fewer) == pytest.approx(0.125 / (0.125 + 0.75))


def test_small_channels_count_as_much_as_large_ones() -> None:
    random = np.random.default_rng(0)
    true = random.normal(0, 1, (2, 50, 2)) * [1000, 1]  # anchors by numbers: boxes and scores
    found = true.copy()
    found[..., 1] = true[::-1, ::-1, 1]  # the scores are ruined
    ruined = noise_share(outputs(y=true), outputs(y=found))
    assert 0.25 < ruined < 0.45
    flipped = noise_share(outputs(y=true.swapaxes(1, 2)), outputs(y=found.swapaxes(1, 2)))
    assert flipped == pytest.approx(ruined)
    image = noise_share(outputs(y=true.swapaxes(1, 2).reshape(2, 2, 5, 10)),
                        outputs(y=found.swapaxes(1, 2).reshape(2, 2, 5, 10)))  # fmt: skip
    assert image == pytest.approx(ruined)


def test_outputs_count_alike_and_dimensions_of_one_do_not() -> None:
    true = outputs(a=[[1.0, -1.0]], b=[[100.0, -100.0]])
    found = outputs(a=[[2.0, -2.0]], b=[[100.0, -100.0]])
    assert noise_share(true, found) == pytest.approx(0.25)
    deep = outputs(a=np.array([[[[1.0]], [[-1.0]]]]))
    assert noise_share(deep, outputs(a=np.array([[[[2.0]], [[-2.0]]]]))) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("section", "is_known"),
    [
        ({"detect": "yolox"}, True),
        ({"classify": "auto"}, True),
        ({"embed": "l2"}, True),
        ({"classify": "heads"}, False),
        ({"text": "ctc"}, False),
        ({"depth": "metric"}, False),
        ({"image": "unit"}, False),
        ({"anomaly": "map"}, False),
        ({"python": "mine:decode"}, False),
    ],
)
def test_records_that_cannot_be_compared_leave_it_at_noise(section: dict[str, str], is_known: bool) -> None:
    assert is_compared(TypeAdapter(TaskConfig).validate_python(section)) is is_known


def test_outputs_with_more_noise_than_signal_are_named() -> None:
    noise_db = {"a": -8.66, "b": 3.0, "c": -np.inf, "d": np.inf, "inner": -20.0}
    assert noisy_outputs(noise_db, ["d", "c", "b", "a", "e"]) == (
        "the noise of output 'a' is larger than its signal (-8.7 dB)",
    )
    assert not is_clear(noise_db, ["a"]) and not is_clear(noise_db, ["b"]) and is_clear(noise_db, ["c", "d", "e"])


def test_noise_of_the_outputs_that_two_models_share() -> None:
    one, other = (
        constant({"y": [[1.0, 2.0]], "z": [[3.0]], own: [[1.0]]}, (1, 3, 8, 8)) for own in ("first", "second")
    )
    shifted = constant({"y": [[2.0, 2.0]], "z": [[3.0]]}, (1, 3, 8, 8))
    feeds = [{"images": np.zeros((1, 3, 8, 8), np.float32)}] * 3
    found = output_noise(Function(one), Function(shifted), feeds)
    assert found == {"y": pytest.approx(10 * np.log10(5)), "z": np.inf}
    assert output_noise(Function(one), Function(other), feeds) == {"y": np.inf, "z": np.inf}


def evaluated(folder: Path, scores: list[float]) -> Evaluation:
    for name, numbers in (("net", [1.0, 2.0]), ("other", scores)):
        (folder / f"{name}.onnx").write_bytes(to_bytes(constant({"y": [numbers]}, (1, 3, 16, 16))))
    (folder / "images").mkdir()
    for n in range(3):
        cv2.imwrite(str(folder / "images" / f"{n}.png"), np.full((16, 16, 3), 50 * n, np.uint8))
    found = evaluate(
        folder / "net.onnx",
        data=str(folder / "images"),
        against=[folder / "other.onnx"],
        input="stretch std=255",
        options=EvaluateOptions(task="classify logits"),
    )
    assert found is not None and found.result.comparisons[0].other == 1.0
    return found


def test_noise_and_an_agreement_that_says_little_are_warned_of(tmp_path: Path) -> None:
    found = evaluated(tmp_path, [7.0, 8.0])
    assert found.warnings == (
        "other.onnx: the noise of output 'y' is larger than its signal (-11.6 dB)",
        "agreement with net says little: its result is the same on all 3 images",
    )
    assert found.to_json()["warnings"] == list(found.warnings)
    assert [one.text for one in found.report().notes if one.level == "warning"] == [
        f"{text[:1].upper()}{text[1:]}." for text in found.warnings
    ]


def test_a_version_that_is_the_same_is_not_warned_of(tmp_path: Path) -> None:
    assert evaluated(tmp_path, [1.1, 2.1]).warnings == ()


def test_the_command_prints_the_warnings(tmp_path: Path) -> None:
    evaluated(tmp_path, [7.0, 8.0])
    words = ["eval", "net.onnx", "--against", "other.onnx", "--data", "images", "--task", "classify logits"]
    words = [str(tmp_path / word) if (tmp_path / word).exists() else word for word in words]
    done = CliRunner().invoke(app, [*words, "--input", "stretch std=255"])
    assert done.exit_code == 0 and "is larger than its signal (-11.6 dB)" in " ".join(done.output.split())
