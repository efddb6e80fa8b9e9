"""Vectors."""

import numpy as np

from edgert.stages.decode.classify import Embed
from tests.helpers.known_boxes import identity

IMAGE = identity((128, 256))


def test_length_becomes_one_and_the_output_stays() -> None:
    output = np.array([[3], [4]], np.float32)
    record = Embed()([output], IMAGE)
    np.testing.assert_allclose(record.vector, [0.6, 0.8], rtol=1e-6)
    assert record.vector.dtype == np.float32
    assert output.tolist() == [[3], [4]]


def test_a_vector_can_be_left_as_it_is_but_is_a_copy() -> None:
    output = np.array([3, 4], np.float32)
    record = Embed(embed="none")([output], IMAGE)
    assert record.vector.tolist() == [3, 4] and not np.shares_memory(record.vector, output)


def test_zeros_have_no_direction() -> None:
    assert Embed()([np.zeros(4, np.float32)], IMAGE).vector.tolist() == [0, 0, 0, 0]
