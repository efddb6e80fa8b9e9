"""Words on pictures."""

from __future__ import annotations

from typing import Any

import cv2

from edgert.runtime.frame import U8
from edgert.stages.palette import Bgr, text_color

_WEIGHT = 500  # between regular (400) and bold (700): legible when small
_HERSHEY_PX = 22  # height of OpenCV's stroke font, ascender to baseline, at scale 1
_PADDING = 0.3  # around a word, in heights of the letters


class Pen:
    """Writes at one height. OpenCV 5 brings a real font that knows Unicode; older ones have strokes for ASCII only."""

    def __init__(self, height_px: int) -> None:
        self.height_px = height_px
        make_font: Any = getattr(cv2, "FontFace", None)
        self._font = make_font("sans") if make_font is not None else None

    @property
    def line_px(self) -> int:
        """From one line of text in a box to the next."""
        return self.height_px + 2 * self._padding_px()

    def boxed(self, picture: U8, text: str, left: int, top: int, background: Bgr) -> None:
        """A filled box with its top left corner at (left, top), moved as far as needed to stay in the picture."""
        height, width = picture.shape[:2]
        padding = self._padding_px()
        box_width = self._width(picture, text) + 2 * padding
        left, top = max(0, min(left, width - box_width)), max(0, min(top, height - self.line_px))
        right, bottom = left + box_width - 1, top + self.line_px - 1
        cv2.rectangle(picture, (left, top), (right, bottom), background, cv2.FILLED)
        self._put(picture, text, (left + padding, top + padding + self._baseline_px()), text_color(background))

    def _padding_px(self) -> int:
        return max(2, round(self.height_px * _PADDING))

    def _baseline_px(self) -> int:
        return round(self.height_px * 0.86)

    def _width(self, picture: U8, text: str) -> int:
        if self._font is None:
            (width, _), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, self._scale(), self._stroke())
            return width
        size: Any = cv2.getTextSize
        left, _, width, _ = size(
            (picture.shape[1], picture.shape[0]), text, (0, 0), self._font, self.height_px, _WEIGHT
        )
        return int(left + width)

    def _put(self, picture: U8, text: str, baseline: tuple[int, int], color: Bgr) -> None:
        if self._font is None:
            face, stroke = cv2.FONT_HERSHEY_SIMPLEX, self._stroke()
            cv2.putText(picture, text, baseline, face, self._scale(), color, stroke, cv2.LINE_AA)
        else:
            put: Any = cv2.putText
            put(picture, text, baseline, color, self._font, self.height_px, _WEIGHT)

    def _scale(self) -> float:
        return 0.75 * self.height_px / _HERSHEY_PX

    def _stroke(self) -> int:
        return max(1, round(self.height_px / 14))
