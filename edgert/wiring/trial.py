"""Running one model under many settings: pictures are resized once, and no run is made twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from edgert.backend import Session
from edgert.config import InputConfig
from edgert.runtime import Frame
from edgert.stages.decode.base import Array
from edgert.stages.geometry import Geometry
from edgert.stages.placement import Placement, place
from edgert.stages.preprocess import Preprocessor
from edgert.stages.resample import Resampler
from edgert.wiring.photo import View

Answer = tuple[tuple[Array, ...], Geometry]
"""The outputs of one picture without their batch dimension, copied, and the way back to the view's pixels."""


class Trial:
    """One session of a model, fed from views.

    Args:
        session: whose only input is the picture.
        batched: for every output, whether its first dimension is the batch.
        where: the model, for messages.
        ran: called after every run of the engine.
    """

    def __init__(self, session: Session, batched: Sequence[bool], where: str, ran: Callable[[], None]) -> None:
        self._session, self._batched, self._where, self._ran = session, batched, where, ran
        (self._tensor,) = session.inputs.values()
        self._small: dict[tuple[object, ...], Frame] = {}
        self._answers: dict[tuple[object, ...], tuple[Array, ...]] = {}

    def answer(self, config: InputConfig, view: View) -> Answer:
        """What the model says about a view under a configuration.

        Raises:
            ModelError: the input is no picture of that colour and layout.
            StageError: ``resize: none`` and a picture of another size.
        """
        fitted = config.model_copy(update={"resize": "stretch"}) if config.resize == "center_crop" else config
        preprocessor = Preprocessor(fitted, self._tensor, self._where)  # a new one: another may have changed the border
        placement = place(view.frame, preprocessor.network, config)
        key = (*_content(view, placement), *_treatment(config, placement, preprocessor.network))
        if key not in self._answers:
            preprocessor.into(0, self._resized(view, placement, config))
            pairs = zip(self._session.run(1), self._batched, strict=True)
            self._answers[key] = tuple((array[0] if batched else array).copy() for array, batched in pairs)
            self._ran()
        return self._answers[key], placement.geometry

    def forget(self) -> None:
        """Drops what is kept for the photographs seen so far."""
        self._small.clear()
        self._answers.clear()

    def _resized(self, view: View, placement: Placement, config: InputConfig) -> Frame:
        """The used part of a view, cut and resized as it stands in the network: placing it again moves nothing."""
        if config.resize == "none":
            return placement.frame
        key = (*_content(view, placement), config.interpolation)
        if key not in self._small:
            width, height = placement.width, placement.height
            resampler = Resampler(width, height, "bgr", config.interpolation)
            picture = resampler.picture(placement.frame, width, height)
            self._small[key] = replace(
                placement.frame, width=width, height=height, planes=(picture,), origin=(0, 0), root=None
            )
        return self._small[key]


def _content(view: View, placement: Placement) -> tuple[object, ...]:
    frame = placement.frame
    return id(view), frame.origin, frame.width, frame.height, placement.width, placement.height


def _treatment(config: InputConfig, placement: Placement, network: tuple[int, int]) -> tuple[object, ...]:
    """What else the input depends on; a border that is not there has no colour."""
    bordered = (placement.width, placement.height) != network
    border = (placement.left, placement.top, config.pad) if bordered else ()
    return border, config.color, config.mean, config.std, config.interpolation
