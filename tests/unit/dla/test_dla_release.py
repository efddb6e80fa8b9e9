"""Which TensorRT can use a DLA."""

import pytest

from dla import supported_by
from dla.rule import ORIN, XAVIER


@pytest.mark.parametrize(
    ("version", "generation", "answer"),
    [
        ("8.5.2", XAVIER, "yes"),
        ("8.6.2", XAVIER, "no"),
        ("8.5.2.2", ORIN, "yes"),
        ("10.3.0", ORIN, "yes"),
        ("10.7.0.23", ORIN, "yes"),
        ("10.13.3", ORIN, "no"),
        ("11.0", ORIN, "no"),
        ("11.4.0.106", ORIN, "no"),
        ("11.4.1", ORIN, "verify"),
        ("12.0.0", ORIN, "verify"),
    ],
)
def test_answer(version: str, generation: int, answer: str) -> None:
    verdict = supported_by(version, generation)
    assert verdict.answer == answer and version in verdict.reason
    assert bool(verdict.fix) == (answer != "yes")


def test_not_a_version() -> None:
    with pytest.raises(ValueError, match=r"expected a version number like 10\.3\.0, got 'new'"):
        supported_by("new", ORIN)
