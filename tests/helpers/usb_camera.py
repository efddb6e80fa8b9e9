"""A USB camera's driver, as far as its modes go: the kernel's calls answered from a table."""

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from edgert.stages.source import v4l2

Size = tuple[int, int]
C615: Mapping[str, Mapping[Size, tuple[int, ...]]] = {
    "YUYV": {(640, 480): (30, 15), (1280, 720): (10, 5)},
    "MJPG": {(640, 480): (30, 15), (1280, 720): (30, 15), (1920, 1080): (30,)},
}
"""As a USB 2 camera is often reported, for example in https://github.com/opencv/opencv/issues/9540."""


@dataclass
class UsbCamera(v4l2.Kernel):
    """A driver: format → size → frames per second. It is set to ``letters`` at ``size``."""

    modes: Mapping[str, Mapping[Size, tuple[int, ...]]] = field(default_factory=lambda: C615)
    letters: str = "YUYV"
    size: Size = (1280, 720)
    is_there: bool = True
    lists: bool = True
    stepwise: bool = False
    opened: int = 0
    closed: int = 0

    def open(self, path: str) -> int:
        if not self.is_there:
            raise OSError(errno.ENODEV, "No such device")
        self.opened += 1
        return 5

    def close(self, fd: int) -> None:
        self.closed += 1

    def ioctl(self, fd: int, request: int, argument: Any) -> None:
        assert fd == 5
        if request == v4l2.Request.G_FMT:
            pix = argument.fmt.pix
            (pix.width, pix.height), pix.pixelformat = self.size, v4l2.fourcc(self.letters)
        elif not self.lists:
            raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")
        elif request == v4l2.Request.ENUM_FMT:
            argument.pixelformat = v4l2.fourcc(self._nth(list(self.modes), argument.index))
        elif request == v4l2.Request.ENUM_FRAMESIZES:
            self._size(argument, self.modes[self._letters(argument.pixel_format)])
        elif request == v4l2.Request.ENUM_FRAMEINTERVALS:
            rates = self.modes[self._letters(argument.pixel_format)]
            self._rate(argument, rates.get((argument.width, argument.height), next(iter(rates.values()))))
        else:
            raise AssertionError(v4l2.Request(request).name)

    def _letters(self, pixel_format: int) -> str:
        return pixel_format.to_bytes(4, "little").decode("ascii")

    def _size(self, argument: Any, sizes: Mapping[Size, tuple[int, ...]]) -> None:
        width, height = self._nth(list(sizes), argument.index)
        argument.type, argument.numbers[0], argument.numbers[1] = 1, width, height
        if self.stepwise:
            argument.type = 3
            argument.numbers[:] = (*_range([one for one, _ in sizes]), *_range([one for _, one in sizes]))

    def _rate(self, argument: Any, rates: tuple[int, ...]) -> None:
        fraction = Fraction(self._nth(rates, argument.index))
        argument.type = 1
        argument.fractions[0], argument.fractions[1] = fraction.denominator, fraction.numerator
        if self.stepwise:
            argument.type = 3
            argument.fractions[:] = (1, max(rates), 1, min(rates), 1, max(rates))

    def _nth(self, options: Any, index: int) -> Any:
        if index >= (1 if self.stepwise and options and not isinstance(options[0], str) else len(options)):
            raise OSError(errno.EINVAL, "Invalid argument")
        return options[index]


def _range(sides: list[int]) -> tuple[int, int, int]:
    return min(sides), max(sides), 16
