"""Evidence in what models write and paint."""

import cv2
import numpy as np
import pytest

from edgert.runtime import OutputImage, Text
from edgert.wiring.evidence import image_parts, image_similarity, text_parts, text_similarity

PHOTO = cv2.resize(np.random.default_rng(0).integers(0, 256, (9, 12, 3), np.uint8), (160, 120))


def made(pixels: np.ndarray) -> OutputImage:
    return OutputImage(pixels, (0.0, 0.0, 160.0, 120.0))


def test_text_counts_where_other_views_show_it_and_the_control_does_not() -> None:
    read = [Text("4 8 15 16", 0.9), Text("8 15 16", 0.9), Text("4 8 15", 0.9)]
    sure, shared, chance = text_parts(read, Text("", 0.0))
    assert (sure, chance) == (0.9, 0.0) and 0.6 < shared < 0.9
    assert text_parts([read[0], Text("23 42", 0.9)], Text("1", 0.4)) == (0.9, 0.0, 0.4)


def test_texts_are_alike_by_characters_in_their_order() -> None:
    assert text_similarity(Text("4 8 15", 0.5), Text("4 8 15", 0.9)) == 1
    assert text_similarity(Text("4 8 15", 0.5), Text("15 4", 0.5)) == pytest.approx(2 / 5)
    assert text_similarity(Text("", 0.5), Text("4", 0.5)) == 0


def test_an_image_that_keeps_edges_and_colors_is_made_right() -> None:
    brighter, turned = cv2.convertScaleAbs(PHOTO, alpha=0.7, beta=40), np.ascontiguousarray(PHOTO[..., ::-1])
    edges, both, cut = image_parts(made(brighter), PHOTO)
    assert edges > 0.95 and both > 0.95 and cut == 0
    assert image_parts(made(turned), PHOTO)[1] < 0.8
    assert image_parts(made(np.full_like(PHOTO, 255)), PHOTO)[:2] == (0, 0)
    assert image_parts(made(np.full_like(PHOTO, 255)), PHOTO)[2] > 0.9


def test_an_image_of_nothing_is_like_no_other() -> None:
    assert image_similarity(made(PHOTO), made(PHOTO)) == pytest.approx(1)
    assert image_similarity(made(PHOTO), made(np.zeros_like(PHOTO))) == 0
    assert image_similarity(made(PHOTO), made(np.zeros((0, 0, 3), np.uint8))) == 0
