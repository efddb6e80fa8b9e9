from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from edgert.units import format_bytes, parse_bytes, parse_cores, parse_seconds, parse_size, parse_watts, whole_number


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_bytes, "1.5GiB", 1610612736),
        (parse_bytes, "100 MB", 100_000_000),
        (parse_bytes, "0B", 0),
        (parse_watts, "15W", 15.0),
        (parse_watts, " 2500 mW ", 2.5),
        (parse_seconds, "60ms", 0.06),
        (parse_seconds, "1.5min", 90.0),
        (parse_seconds, ".5s", 0.5),
        (parse_seconds, "3.s", 3.0),
        (parse_seconds, "1e-3s", 0.001),
    ],
)
def test_a_quantity_with_its_unit(parse: Callable[[object], float], text: str, value: float) -> None:
    assert parse(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42),
        ("007", 7),
        ("²", None),
        ("٣", None),
        ("-1", None),
        ("", None),
        ("9" * 5000, None),
        ("9" * 18, 10**18 - 1),
    ],
)
def test_a_whole_number_is_written_in_few_ascii_digits(text: str, number: int | None) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize("parse", [parse_bytes, parse_watts, parse_seconds])
@pytest.mark.parametrize("value", [15, 1.5, "15"])
def test_a_bare_number_is_refused_with_an_example(parse: Callable[[object], float], value: object) -> None:
    with pytest.raises(ValueError, match=r"no unit; expected one of .*, like "):
        parse(value)


@pytest.mark.parametrize("parse", [parse_bytes, parse_watts, parse_seconds])
@pytest.mark.parametrize(
    "value",
    ["", "W", "-1W", "1,5W", "nanW", "infW", "1 2W", "15W or so", "0x10W", "١W", True, None, [1], {"a": 1}, b"1W"],
)
def test_what_is_no_quantity_is_refused(parse: Callable[[object], float], value: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse(value)


@pytest.mark.parametrize("text", ["15w", "15kW", "15GIB", "15S", "15gb"])
def test_units_are_spelled_exactly(text: str) -> None:
    for parse in (parse_bytes, parse_watts, parse_seconds):
        with pytest.raises(ValueError, match="unknown unit"):
            parse(text)


def test_the_message_does_not_repeat_what_may_be_a_secret() -> None:
    with pytest.raises(ValueError) as caught:
        parse_watts("5hunter")
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize("text", ["1e999GiB", "1e308GiB"])
def test_infinity_is_too_much(text: str) -> None:
    with pytest.raises(ValueError, match="too large"):
        parse_bytes(text)


def test_a_long_row_of_digits_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_bytes("1" * 200_000 + "!")


@pytest.mark.parametrize("text", ["1280x720", "1280X720", " 1280 × 720 "])
def test_a_size(text: str) -> None:
    assert parse_size(text) == (1280, 720)


@pytest.mark.parametrize(
    "value", ["1280", "0x10", "1280x", "-1x5", "1280x720x3", "100000x1", "1.5x2", 1280, None, (1, 2)]
)
def test_what_is_no_size(value: object) -> None:
    with pytest.raises(ValueError, match="WIDTHxHEIGHT"):
        parse_size(value)


@given(st.integers(1, 99999), st.integers(1, 99999))
def test_sizes_come_back(width: int, height: int) -> None:
    assert parse_size(f"{width}x{height}") == (width, height)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1610612736, "1.5 GiB"),
        (-2048, "-2.0 KiB"),
        (2**43, "8192.0 GiB"),
    ],
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize("value", ["1%", 0, -1, True, "nan", "inf", None])
def test_cores_are_a_number_above_zero(value: object) -> None:
    assert parse_cores("1.5") == 1.5
    with pytest.raises(ValueError, match=r"expected a number of CPU cores above 0, like 1\.5"):
        parse_cores(value)
