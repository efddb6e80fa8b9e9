"""Meters of a machine: power, clocks, load, heat and memory, each value measured, modeled or unavailable.

:class:`edgert.meters.all.Meters` reads all of them at once; a program that needs only its own memory need not import
it.
"""

from edgert.meters.reading import Reading, measured, modeled, unavailable
from edgert.meters.usage import peak_rss_bytes, rss_bytes

__all__ = [
    "Reading",
    "measured",
    "modeled",
    "peak_rss_bytes",
    "rss_bytes",
    "unavailable",
]
