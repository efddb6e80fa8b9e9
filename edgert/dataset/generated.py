"""Images of a source that generates them, ``python:module:name`` or ``synthetic:noise``, as a dataset."""

import threading
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from edgert.config.pipeline_file import CODE_PREFIX
from edgert.config.stages import SourceStage
from edgert.errors import StageError
from edgert.memory import Counter, lend
from edgert.runtime import Frame
from edgert.runtime.frame import U8
from edgert.stages.source import kinds, python_images
from edgert.user_code import check_object, code_name

PREFIXES = (CODE_PREFIX, "synthetic:")
DEFAULT_COUNT = 64
_RATE_HZ = 2.0  # so that objects move far between two images
_SEED = 1_000_003  # unlikely in a pipeline, so that a model is not evaluated on images it was tuned on


@dataclass(frozen=True, slots=True, eq=False)
class GeneratedDataset:
    """Generated images, an :class:`~edgert.dataset.images.ImageDataset`; created on first use and kept in memory.

    Folders of code in ``source`` are absolute.
    """

    source: str
    count: int = DEFAULT_COUNT
    where: str = ""
    _made: list[U8] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        kind, _, rest = self.source.partition(":")  # a wrong source raises here; code runs on first use
        if f"{kind}:" == CODE_PREFIX:
            check_object(rest, self.where, None)
        else:
            python_images.scene_named(rest, self.where)

    def __len__(self) -> int:
        return self.count

    def __reduce__(self) -> tuple[Any, ...]:
        return GeneratedDataset, (self.source, self.count, self.where)

    def name(self, index: int) -> str:
        return f"{self.source.rpartition('/')[2]} image {index}"

    def frame(self, index: int) -> Frame:
        """Return an image; raise StageError if the code gives fewer images."""
        with _DRAWING:
            if not self._made:
                self._make()
        if index >= len(self._made):
            raise StageError(
                f"{self.source!r} ends after {len(self._made)} images",
                why=f"{self.count} were requested",
                where=self.where,
                fix=f"set limit: {len(self._made)}",
            )
        image = self._made[index]
        height, width = image.shape[:2]
        return Frame("dataset", index, 0, 0, width, height, "bgr", (image,), lend(image, Counter()))

    def digest(self) -> str:
        """Return a digest of options and code, which determine the images."""
        is_code = self.source.startswith(CODE_PREFIX)
        of = code_name(self.source.removeprefix(CODE_PREFIX), self.where).digest() if is_code else self.source
        return repr((of, self.count, _RATE_HZ, _SEED))

    def _make(self) -> None:
        written = {"source": self.source, "fps": _RATE_HZ, "seed": _SEED, "limit": self.count}
        stage, images = SourceStage.model_validate(written), []
        with closing(kinds.source_for("dataset", stage)) as source:
            for frame in islice(source.frames(threading.Event()), self.count):
                images.append(np.array(frame.to_bgr()))
                frame.lease.release()
        self._made.extend(images)


_DRAWING = threading.Lock()
