"""Images of a synthetic scene as a dataset: for demos and tests, where no photos are at hand."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from edgert.clock import REAL
from edgert.config import SourceStage
from edgert.memory import Counter, lend
from edgert.runtime import Frame
from edgert.runtime.frame import U8
from edgert.stages.source.scenes import Synthetic, check_scene

PREFIX = "synthetic:"
DEFAULT_COUNT = 64
_SIZE = (640, 480)
_RATE_HZ = 2.0  # so that no two images show the same objects in nearly the same place
_SEED = 1_000_003  # none that a pipeline is likely to use: what is measured on these is judged on others


@dataclass(frozen=True, slots=True, eq=False)
class SceneDataset:
    """See :class:`~edgert.dataset.images.ImageDataset`. Drawn when first asked for; 0.9 MB each, all kept.

    Attributes:
        scene: ``conveyor``, or another of :class:`~edgert.stages.source.scenes.Synthetic`.
        count: how many.
    """

    scene: str
    count: int = DEFAULT_COUNT
    _made: list[U8] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        check_scene(self.scene, "dataset")  # and draws nothing yet

    def __len__(self) -> int:
        return self.count

    def __reduce__(self) -> tuple[type[SceneDataset], tuple[str, int]]:
        return SceneDataset, (self.scene, self.count)

    def name(self, index: int) -> str:
        return f"{PREFIX}{self.scene} image {index}"

    def frame(self, index: int) -> Frame:
        with _DRAWING:
            if not self._made:
                self._made.extend(self._drawn())
        image = self._made[index]
        return Frame("dataset", index, 0, 0, *_SIZE, "bgr", (image,), lend(image, Counter()))

    def digest(self) -> str:
        """What the images depend on."""
        return repr((self.scene, self.count, _SIZE, _RATE_HZ, _SEED))

    def _drawn(self) -> list[U8]:
        images = []
        with closing(self._source()) as source:
            for frame in islice(source.frames(threading.Event()), self.count):
                images.append(np.array(frame.to_bgr()))
                frame.lease.release()
        return images

    def _source(self) -> Synthetic:
        written = {"source": PREFIX + self.scene, "size": "{}x{}".format(*_SIZE), "fps": _RATE_HZ, "seed": _SEED}
        config = SourceStage.model_validate({**written, "limit": self.count})
        return Synthetic("dataset", self.scene, config, Counter(), REAL)


_DRAWING = threading.Lock()
