"""Top classes of probabilities and of logits."""

import numpy as np
import pytest
from hypothesis import assume, example, given, strategies as st

from edgert.config import ClassifyTask
from edgert.errors import ConfigError, ModelError
from edgert.stages.decode.classify import Classify, Heads, MultiLabel
from edgert.stages.decode.kinds import decoder_for
from tests.helpers.known_boxes import identity

IMAGE = identity((224, 224))


def softmax(logits: np.ndarray) -> np.ndarray:
    power = np.exp(logits - logits.max())
    return power / power.sum()


@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.integers(1, 9))
@example(seed=635, count=2, top=1)
def test_auto_sees_whether_a_softmax_is_still_to_do(seed: int, count: int, top: int) -> None:
    logits = (np.random.default_rng(seed).standard_normal(count) * 4).astype(np.float32)
    assume(logits.min() < 0 or abs(logits.sum() - 1) > 0.05)  # else they are a distribution, too
    expected = softmax(logits.astype(np.float64))
    for output in (logits, expected.astype(np.float32)):
        record = Classify(top=top)([output], IMAGE)
        assert len(record.scores) == min(top, count) and record.classes.dtype == np.int32
        np.testing.assert_allclose(record.scores, expected[record.classes], atol=1e-5)
        np.testing.assert_allclose(record.scores, np.sort(expected)[::-1][:top], atol=1e-5)


def test_the_file_can_say_what_the_output_is() -> None:
    """Positive numbers that happen to sum to one are taken for probabilities, unless told."""
    output = np.array([0.7, 0.2, 0.1], np.float32)
    np.testing.assert_allclose(Classify("auto")([output], IMAGE).scores, output)
    np.testing.assert_allclose(Classify("logits")([output], IMAGE).scores, softmax(output), rtol=1e-6)
    np.testing.assert_allclose(Classify("softmax")([output * 3], IMAGE).scores, output * 3)


@pytest.mark.parametrize(
    ("classify", "number", "score"),
    [
        ("auto", 0.73, 0.73),
        ("auto", 2.5, 0.924142),
        ("auto", -900, 0),
        ("logits", 0.73, 0.674805),
        ("softmax", 0.2, 0.2),
    ],
)
def test_one_number_is_the_probability_of_the_only_class(classify: str, number: float, score: float) -> None:
    decoder = decoder_for(ClassifyTask(classify=classify), ())
    record = decoder([np.array([[number]], np.float32)], IMAGE)
    assert record.classes.tolist() == [0] and record.scores.tolist() == pytest.approx([score], abs=1e-6)


def test_dimensions_of_one_and_half_precision_do_not_matter() -> None:
    output = softmax(np.arange(1000) / 100).astype(np.float16).reshape(1000, 1, 1)
    record = Classify(top=2)([output], IMAGE)
    assert record.classes.tolist() == [999, 998] and record.scores.dtype == np.float32
    np.testing.assert_allclose(record.scores, output.reshape(-1)[[999, 998]])


def test_a_record_has_the_labels() -> None:
    assert Classify(labels=("a", "b"))([np.float32([0.1, 0.9])], IMAGE).labels == ("a", "b")


def test_what_is_no_probability_is_left_out() -> None:
    output = np.array([0.1, np.nan, 0.7, 0.2, np.nan, 0.0], np.float32)
    record = Classify("softmax", top=3)([output], IMAGE)
    assert record.classes.tolist() == [2, 3, 0]
    assert Classify("softmax", top=9)([output], IMAGE).classes.tolist() == [2, 3, 0, 5]
    assert not len(Classify("logits", top=9)([output], IMAGE).scores)  # one spoils the sum of all


def test_probabilities_too_small_for_a_float_keep_the_order_of_their_logits() -> None:
    output = np.array([-900, 0, -800, -700], np.float32)
    assert Classify("logits")([output], IMAGE).classes.tolist() == [1, 3, 2, 0]


def test_classes_that_do_not_exclude_each_other() -> None:
    logits = np.array([2, -3, 0.1, 5, -0.1], np.float32)
    found = MultiLabel(labels=tuple("abcde"))([logits], identity((8, 8)))
    assert found.classes.tolist() == [3, 0, 2]
    np.testing.assert_allclose(found.scores, 1 / (1 + np.exp(-logits[[3, 0, 2]].astype(np.float64))), atol=1e-6)
    final = MultiLabel(top=2, score=0.2)([np.array([[0.9], [0.1], [0.3], [0.5]], np.float32)], identity((8, 8)))
    assert final.classes.tolist() == [0, 3] and final.scores.tolist() == pytest.approx([0.9, 0.5])
    assert len(MultiLabel()([np.full(4, -9, np.float32)], identity((8, 8))).scores) == 0


def test_several_heads() -> None:
    task = ClassifyTask(classify="heads", options={"heads": {"color": ["red", "blue"], "type": [], "age": []}})
    decoder = decoder_for(task, ())
    outputs = [np.array([0.2, 0.8], np.float32), np.array([[1, 9, 2]], np.float32), np.array([[[31]]], np.float32)]
    decoder.check([output.shape for output in outputs], (8, 8))
    heads = decoder(outputs, identity((8, 8))).heads
    assert list(heads) == ["color", "type", "age"] and heads["age"] == 31.0
    assert heads["color"].labels[heads["color"].classes[0]] == "blue" and heads["type"].classes[0] == 1
    assert list(Heads()(outputs, identity((8, 8))).heads) == ["0", "1", "2"]
    for shapes, error, match in (
        ([(2,), (3,)], ConfigError, "3 heads are named, and the model has 2"),
        ([(3,), (3,), (1,)], ConfigError, "2 labels for 3 classes"),
        ([(2,)], ModelError, "several outputs"),
        ([(2,), (3, 4), (1,)], ModelError, "several outputs"),
    ):
        with pytest.raises(error, match=match):
            decoder.check(shapes, (8, 8))
