"""Dataset as the input of a model, with the preprocessing of the pipeline."""

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.backend import DEFAULT_PROFILE
from edgert.config import InputConfig, ModelConfig
from edgert.dataset.images import ImageDataset
from edgert.engine import default_profile, wrong_inputs_error
from edgert.errors import EdgertError
from edgert.graph import Model, inputs
from edgert.memory.buffer import aligned_empty
from edgert.stages import crop, preprocess

Array = npt.NDArray[Any]


class ImageFeed:
    """Images as input tensors of batch 1; can be pickled and used from several threads.

    The first dimension of ``shape``, the batch, is ignored. ``rows`` is the fixed batch of the model: :meth:`feeds`
    repeats an image as often. Raises ModelError: the shape or dtype is not that of an image.
    """

    def __init__(
        self,
        images: ImageDataset,
        input: InputConfig,
        input_name: str,
        shape: tuple[int, ...],
        dtype: str = "float32",
        rows: int = 1,
    ) -> None:
        self.images, self.input, self.input_name, self.rows = images, input, input_name, rows
        self.shape, self.dtype = (1, *shape[1:]), dtype
        self._local = threading.local()
        self._tensor()  # raises errors that every image would cause

    def __len__(self) -> int:
        return len(self.images)

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageFeed, (self.images, self.input, self.input_name, self.shape, self.dtype, self.rows)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the input, in pixels."""
        channels = 1 if self.input.color == "gray" else 3
        last = self.shape[3] == channels and (self.input.layout == "nhwc" or self.shape[1] != channels)
        height, width = self.shape[1:3] if last else self.shape[2:4]
        return width, height

    def name(self, index: int) -> str:
        """Return the name of an image for messages."""
        return self.images.name(index)

    def feeds(self, index: int) -> dict[str, Array]:
        """Return input name → new (rows, …) array; raise the errors of :meth:`image`."""
        return {self.input_name: np.repeat(self.image(index)[0], self.rows, axis=0)}

    def image(self, index: int) -> tuple[Array, crop.Geometry]:
        """Return a new (1, …) array, and the mapping back to the image's pixels.

        Raises ConfigError: the image cannot be read. Raises StageError: the image does not fit the input.
        """
        tensor, preprocessor = self._tensor()
        frame = self.images.frame(index)
        try:
            geometry = preprocessor.into(0, frame)
        except EdgertError as error:
            error.where = self.images.name(index)
            raise
        finally:
            frame.lease.release()
        return tensor.copy(), geometry

    def _tensor(self) -> tuple[Array, preprocess.Preprocessor]:
        """Return this thread's tensor, which keeps its border between images, and the preprocessor that writes it."""
        if not hasattr(self._local, "made"):
            tensor = aligned_empty(self.shape, self.dtype)
            self._local.made = tensor, preprocess.Preprocessor(self.input, tensor, self.input_name)
        made: tuple[Array, preprocess.Preprocessor] = self._local.made
        return made


def feed_of(images: ImageDataset, model: Model, config: ModelConfig) -> ImageFeed:
    """Return a dataset as the input of a model.

    Raises ModelError: the model's input is not one image, or its size is unknown.
    """
    specs = inputs(model)
    if len(specs) != 1 or len(specs[0].shape) != 4:
        raise wrong_inputs_error({one.name: [size or "?" for size in one.shape] for one in specs}, str(model.path))
    (spec,) = specs
    profiles = config.profiles or default_profile(model, config)
    shapes = profiles.get(DEFAULT_PROFILE) or next(iter(profiles.values()), {})
    shape = shapes.get(spec.name) or tuple(dim for dim in spec.shape if isinstance(dim, int))
    rows = spec.shape[0] if isinstance(spec.shape[0], int) else 1
    return ImageFeed(images, config.input, spec.name, shape, spec.dtype, rows)
