"""Numbers as text: without meaningless digits, with a real minus sign, and with a unit on the same line."""

import math

from edgert.units import format_bytes

_SPACE = "\N{NO-BREAK SPACE}"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LARGEST_PLAIN = 5  # decimal exponent from which numbers are written as powers of ten
_SMALLEST_PLAIN = -3
_SMALLEST_SHARE = 1e-5
_CLEAR = 1.05  # a ratio nearer to 1 counts as the same


def fixed(value: float, places: int) -> str:
    """Return -0.5 with 2 places as ``"−0.50"``, and a negative zero without its sign."""
    text = f"{value:.{places}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


def significant(value: float, digits: int = 3) -> str:
    """Return a number with three significant digits: ``0.0253``, ``3.21``, ``412``, ``1.2×10⁻⁷``."""
    if value == 0 or not math.isfinite(value):
        return fixed(value, 0) if value == 0 else ("∞" if value > 0 else "−∞" if value < 0 else "not a number")
    mantissa, exponent = f"{abs(value):.{digits - 1}e}".split("e")
    power = int(exponent)
    sign = "−" if value < 0 else ""
    if not _SMALLEST_PLAIN <= power < _LARGEST_PLAIN:
        head = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{sign}{'' if head == '1' else head + '×'}10{str(power).translate(_RAISED)}"
    text = f"{abs(float(f'{value:.{digits - 1}e}')):.{max(digits - 1 - power, 0)}f}"
    return sign + (text.rstrip("0").rstrip(".") if "." in text else text)


def power_of_ten(exponent: int) -> str:
    """Return 2 as ``"100"``, 6 as ``"10⁶"``."""
    return str(10**exponent) if exponent <= 2 else f"10{str(exponent).translate(_RAISED)}"


def share(fraction: float) -> str:
    """Return a fraction, which may be small, as ``"0.013 %"``, ``"none"`` or ``"all"``."""
    if 0 < fraction < _SMALLEST_SHARE:
        return f"under {100 * _SMALLEST_SHARE:g}{_SPACE}%"
    return "none" if fraction <= 0 else "all" if fraction >= 1 else f"{significant(fraction * 100, 2)}{_SPACE}%"


def bare(value: float, unit: str) -> str:
    """Return a metric's value, or a difference of two, without its unit."""
    return fixed(value * 100, 2) if unit == "percent" else fixed(value, 4)


def score(value: float, unit: str) -> str:
    """Return a metric's value with its unit: 0.7012 as ``"70.12 %"``."""
    return bare(value, unit) + (f"{_SPACE}%" if unit == "percent" else "")


def difference(value: float, unit: str) -> str:
    """Return a difference of two values of a metric with its unit: 0.0042 as ``"0.42 points"``."""
    return bare(value, unit) + (f"{_SPACE}points" if unit == "percent" else "")


def milliseconds(value: float) -> str:
    """Return 12.345 as ``"12.3 ms"``."""
    return f"{significant(value)}{_SPACE}ms"


def decibels(value: float | None) -> str:
    """Return 31.26 as ``"31.3 dB"``; ``"exact"`` for infinity, a dash for an unknown value."""
    if value is None or math.isnan(value):
        return "–"
    return "exact" if value == math.inf else f"{fixed(value, 1)}{_SPACE}dB"


def size(count: int) -> str:
    """Return bytes in binary units."""
    return format_bytes(count).replace(" ", _SPACE)


def times(ratio: float) -> str:
    """Return 1.83 as ``"1.8×"``, 12.4 as ``"12×"``, 1 as ``"1.0×"``."""
    return f"{ratio:.1f}×" if ratio < 9.95 else f"{ratio:.0f}×"


def is_same(ratio: float) -> bool:
    """Return whether a ratio is close enough to 1 to count as the same."""
    return 1 / _CLEAR < ratio < _CLEAR


def counted(count: int, one: str) -> str:
    """Return ``"1 layer"``, ``"3 layers"``."""
    return f"{count}{_SPACE}{one}{'' if count == 1 else 's'}"
