"""Conversion of quantities with units to plain numbers in bytes, watts or seconds, and back to text.

A quantity without a unit is an error: ``15`` may be watts or milliwatts.
"""

import math
import re

_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_WATTS = {"mW": 1e-3, "W": 1.0}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\s*([A-Za-z]*)\s*")


def _parse(value: object, units: dict[str, float] | dict[str, int], example: str) -> float:
    match = _QUANTITY.fullmatch(str(value)) if isinstance(value, (str, int, float)) else None
    if match is None or isinstance(value, bool):
        raise ValueError(f"expected a number with a unit, like {example}")
    number, unit = match.groups()
    if unit not in units:
        # The value may be a misplaced secret, so the message does not repeat it.
        got = "unknown unit" if unit else "no unit"
        raise ValueError(f"{got}; expected one of {', '.join(units)}, like {example}")
    amount = float(number) * units[unit]
    if not math.isfinite(amount):
        raise ValueError(f"too large; expected something like {example}")
    return amount


def parse_bytes(value: object) -> int:
    """Convert ``"1.5GiB"`` to 1610612736. Raises ValueError without a known unit."""
    return round(_parse(value, _BYTES, "1.5GiB"))


def parse_watts(value: object) -> float:
    """Convert ``"15W"`` to 15.0. Raises ValueError without a known unit."""
    return _parse(value, _WATTS, "15W")


def parse_seconds(value: object) -> float:
    """Convert ``"60ms"`` to 0.06. Raises ValueError without a known unit."""
    return _parse(value, _SECONDS, "60ms")


def parse_cores(value: object) -> float:
    """Convert a number of CPU cores. Raises ValueError for anything else, such as ``50%``."""
    try:
        cores = math.nan if isinstance(value, bool) else float(str(value))
    except ValueError:
        cores = math.nan
    if not (math.isfinite(cores) and cores > 0):
        raise ValueError("expected a number of CPU cores above 0, like 1.5")
    return cores


def parse_size(value: object) -> tuple[int, int]:
    """Convert ``"1280x720"`` to (width, height) in pixels. Raises ValueError otherwise."""
    match = re.fullmatch(r"\s*([1-9][0-9]{0,4})\s*[xX×]\s*([1-9][0-9]{0,4})\s*", str(value))
    if match is None:
        raise ValueError("expected WIDTHxHEIGHT in pixels, like 1280x720")
    return int(match[1]), int(match[2])


_MOST_DIGITS = 18


def whole_number(text: str) -> int | None:
    """Convert ``"42"`` to 42; return None for other text than 1 to 18 of the digits 0 to 9.

    Python's own tests of digits accept ``²``, and ``int`` raises ValueError from 4,301 digits on.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def parse_whole(value: object) -> int:
    """Convert ``"500"`` to 500. Raises ValueError for anything but digits."""
    number = whole_number(str(value))
    if number is None:
        raise ValueError("expected a whole number, like 500")
    return number


def parse_fraction(value: object) -> float:
    """Convert ``"0.97"`` to 0.97. Raises ValueError for anything but a number from 0 to 1."""
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise ValueError("expected a number from 0 to 1, like 0.97")
    return number


def format_ms(milliseconds: float) -> str:
    """Format 12.34 as ``"12.3 ms"``, 11550 as ``"11.6 s"``, 150000 as ``"2.5 min"``."""
    size = abs(milliseconds)
    if size < 1e3:
        return f"{milliseconds:.{2 if size < 1 else 1 if size < 100 else 0}f} ms"
    return f"{milliseconds / 1e3:.1f} s" if size < 120e3 else f"{milliseconds / 60e3:.1f} min"


def format_bytes(count: float) -> str:
    """Format 1610612736 as ``"1.5 GiB"``."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
