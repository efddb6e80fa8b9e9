"""Images for calibration tests. They are here, and not in a test, because worker processes import them."""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass
class Noise:
    """Normal noise, another for each number; larger for larger numbers, so that ranges grow while they are counted."""

    count: int
    shape: tuple[int, ...] = (1, 3, 8, 8)
    input: str = "x"
    growth: float = 0.05
    asked: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        return f"noise-{index}"

    def feeds(self, index: int) -> dict[str, Array]:
        self.asked.append(index)
        noise = np.random.default_rng(index).standard_normal(self.shape).astype(np.float32)
        return {self.input: noise * np.float32(1 + self.growth * index)}


@dataclass
class Order:
    feed: Noise
    order: Sequence[int]

    def __len__(self) -> int:
        return len(self.order)

    def name(self, index: int) -> str:
        return self.feed.name(self.order[index])

    def feeds(self, index: int) -> dict[str, Array]:
        return self.feed.feeds(self.order[index])


@dataclass
class Lethal(Noise):
    """Noise with one image that kills the process it is made in, the first so many times."""

    victim: int = 0
    times: int = 1
    folder: Path = Path()

    def feeds(self, index: int) -> dict[str, Array]:
        if index == self.victim and len(list(self.folder.iterdir())) < self.times:
            (self.folder / f"{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().feeds(index)


@dataclass
class Broken(Noise):
    victim: int = 0
    value: float = float("nan")

    def feeds(self, index: int) -> dict[str, Array]:
        feeds = super().feeds(index)
        if index == self.victim:
            feeds[self.input].flat[5] = self.value
        return feeds
