"""What a machine uses: power, clocks, load, heat and memory, each value measured, modelled or unavailable.

All of it at once: :class:`edgert.budget.meter.meters.Meters`, which a program that only wants its own memory need not
import.
"""

from edgert.budget.meter.process import peak_rss_bytes, rss_bytes
from edgert.budget.meter.reading import Gauge, Kind, Meter, Reading, measured, modelled, unavailable

__all__ = [
    "Gauge",
    "Kind",
    "Meter",
    "Reading",
    "measured",
    "modelled",
    "peak_rss_bytes",
    "rss_bytes",
    "unavailable",
]
