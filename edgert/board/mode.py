"""A power mode of a board, as ``nvpmodel`` sets it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from edgert.board.section import Count, Mhz, Some, Sourced, Text

Watts = Annotated[float, Field(gt=0)]


class Mode(Sourced):
    """What a power mode leaves switched on, and how fast it may run. None is unknown, except in ``watts``.

    Clocks are upper limits; what runs is the next lower step of the hardware's table
    (``available_frequencies`` in sysfs), which differs a little between releases of JetPack.

    Attributes:
        name: as ``nvpmodel -p`` says it. Modes are known by name: their numbers differ from board to board.
        watts: what the module may draw, by the mode's name; None for a mode without a limit, such as ``MAXN``.
        cpu_cores: cores that are on.
        cpu_mhz: fastest clock of the fastest of them.
        sms: streaming multiprocessors of the GPU that are on.
        gpu_mhz: fastest clock of the GPU.
        dla_cores: cores of the DLA that can be used.
        dla_mhz: their fastest clock; None where there is no DLA, too.
        second_dla_mhz: that of the second core, where it has a limit of its own; None where it has not.
        emc_mhz: fastest clock of the memory controller.
        uncapped: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """

    name: Text
    watts: Watts | None
    cpu_cores: Some | None
    cpu_mhz: Mhz | None
    sms: Some | None
    gpu_mhz: Mhz | None
    dla_cores: Count = 0
    dla_mhz: Mhz | None = None
    second_dla_mhz: Mhz | None = None
    emc_mhz: Mhz | None
    uncapped: Annotated[tuple[Text, ...], Field(strict=False)] = ()

    @property
    def unknown(self) -> tuple[str, ...]:
        """Keys of what nobody has published, without which speed cannot be predicted."""
        keys = ("cpu_cores", "cpu_mhz", "sms", "gpu_mhz", "emc_mhz", *(("dla_mhz",) if self.dla_cores else ()))
        return tuple(key for key in keys if getattr(self, key) is None)

    def dla_clock_mhz(self, core: int = 0) -> float | None:
        """Fastest clock of one DLA core; None where it is unknown or there is no such core."""
        if core >= self.dla_cores:
            return None
        return self.second_dla_mhz if core and self.second_dla_mhz is not None else self.dla_mhz
