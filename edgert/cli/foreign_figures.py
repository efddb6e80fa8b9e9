"""Figures that another process reports, shown: each may be missing, or anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

from edgert.cli.terminal import UNKNOWN
from edgert.units import format_bytes, format_ms

_MOST = 2**63
"""Largest number that is accepted: Python's integers have no limit, and its floats have one."""
_FOUR_DIGITS, _LEAST = 1e4, 1e-4


def part(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the mapping under a key; an empty one where there is none."""
    found = of.get(key)
    return found if isinstance(found, dict) else {}


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number that can be shown."""
    return isinstance(value, (int, float)) and -_MOST <= value <= _MOST


def number(value: object, form: str | Callable[[float], str]) -> str:
    """Return a number in a format, or as a function writes it; ``?`` for anything else."""
    if not is_number(value):
        return UNKNOWN
    return form.format(value) if isinstance(form, str) else form(value)


def plain_number(value: float) -> str:
    """Return four digits, and of large numbers all of them: never an exponent."""
    return f"{value:,.0f}" if abs(value) >= _FOUR_DIGITS else f"{value:.4g}" if abs(value) >= _LEAST else "0"


def size(value: object) -> str:
    """Return a number of bytes; ``?`` for anything else."""
    return format_bytes(value) if isinstance(value, int) and is_number(value) else UNKNOWN


def text(value: object) -> str:
    """Return the text without control characters, which would steer the terminal."""
    return "".join(filter(str.isprintable, value)) if isinstance(value, str) else ""


def shares(share: Mapping[str, Any]) -> Iterator[str]:
    """Yield frames a second, dropped results, and median and 99th percentile of latency, of the last minute."""
    latency, dropped = part(share, "latency_ms"), part(share, "dropped").values()
    yield number(share.get("fps"), plain_number)
    yield number(sum(filter(is_number, dropped)), "{:.0f}") if share else UNKNOWN
    yield from (number(latency.get(place), format_ms) for place in ("p50", "p99"))
