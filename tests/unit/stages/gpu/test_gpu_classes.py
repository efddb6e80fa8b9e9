"""The best classes found by the kernel, here on the processor and on a GPU where there is one, are the host's."""

from typing import Any, Literal

import numpy as np
import pytest

from edgert.stages.decode.classify import Classify
from edgert.stages.gpu.gpu_scores import GpuClasses
from edgert.stages.gpu.kernels import Kernels
from tests.helpers.gpu_readers import like_the_host, why_not

Manner = Literal["auto", "softmax", "logits"]


def check(kernels: Kernels, decoder: Classify, values: Any) -> Any:
    return like_the_host(kernels, GpuClasses, decoder, values, scores=2e-6)


def logits(rows: int, classes: int, seed: int = 0) -> Any:
    return (np.random.default_rng(seed + classes).standard_normal((rows, classes)) * 4).astype(np.float32)


@pytest.mark.parametrize("manner", ["auto", "softmax", "logits"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("classes", [1, 2, 5, 33, 1000, 4096, 4097])
def test_is_the_hosts_answer(kernels: Kernels, classes: int, dtype: Any, manner: Manner) -> None:
    values = logits(2, classes).astype(dtype)
    for top in (5, 32):
        found = check(kernels, Classify(manner, top, ("x",) * classes), values)
        assert len(found[0].scores) == min(top, classes)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("classes", [2, 1000, 5000])
def test_auto_sees_a_softmax(kernels: Kernels, classes: int, dtype: Any) -> None:
    power = np.exp(logits(2, classes))
    values = (power / power.sum(axis=1, keepdims=True)).astype(dtype)
    values[1] *= values.dtype.type(2)  # is none any more
    first, second = check(kernels, Classify(), values)
    np.testing.assert_array_equal(first.scores, np.sort(values[0])[::-1][:5])
    assert second.scores[0] != values[1].max()


def test_a_hundred_thousand_classes_and_dimensions_of_one(kernels: Kernels) -> None:
    check(kernels, Classify(top=1), logits(1, 100_003).reshape(1, 100_003, 1, 1))


@pytest.mark.parametrize("classes", [40, 5000])
def test_of_equal_numbers_the_first_comes_first(kernels: Kernels, classes: int) -> None:
    for values in (np.full((1, classes), 0.25, np.float32), np.zeros((1, classes), np.float32)):
        values[0, classes // 2] = -0.0 if values[0, 0] == 0 else 0.25
        (found,) = check(kernels, Classify("logits", 20), values)
        assert found.classes.tolist() == list(range(20))
    few = np.random.default_rng(1).integers(0, 4, (3, classes)).astype(np.float32)
    check(kernels, Classify("softmax", 32), few)


def test_rising_and_falling_numbers(kernels: Kernels) -> None:
    values = np.stack([np.linspace(-3, 3, 6000), np.linspace(3, -3, 6000)]).astype(np.float32)
    check(kernels, Classify(top=32), values)


@pytest.mark.parametrize("manner", ["auto", "softmax", "logits"])
@pytest.mark.parametrize("classes", [3, 100, 5000])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none(kernels: Kernels, odd: float, classes: int, manner: Manner) -> None:
    """One, most, and all of them, and all of one block."""
    values = logits(5, classes)
    values[0, 1] = values[1, :-1] = values[2] = values[3, ::7] = odd
    values[4, :4096] = odd
    found = check(kernels, Classify(manner, 5), values)
    assert all(np.isfinite(record.scores).all() or odd != odd or manner == "softmax" for record in found)


@pytest.mark.parametrize(
    ("decoder", "shape", "dtype", "reason"),
    [
        (Classify(top=33), (1, 1000), "float32", "up to 32 classes, not 33"),
        (Classify(), (1, 1000), "int8", "not int8"),
        (Classify(), (1, 0), "float32", "no classes"),
    ],
)
def test_what_no_kernel_reads_is_named(decoder: Any, shape: tuple[int, ...], dtype: str, reason: str) -> None:
    assert reason in why_not(GpuClasses, decoder, shape, dtype)
