"""A clip in the place of a camera, for the peers' robots: read at its own speed, the newest image wins."""

import time

import cv2


class Camera:
    """Yields images with the time when each was taken, by ``time.monotonic()``; what came meanwhile is passed over."""

    def __init__(self, path):
        self._clip = cv2.VideoCapture(path)
        self._rate_hz = self._clip.get(cv2.CAP_PROP_FPS)

    def __iter__(self):
        began_s, count = time.monotonic(), 0
        while self._clip.grab():
            taken_s = began_s + count / self._rate_hz
            count += 1
            if time.monotonic() < taken_s + 1 / self._rate_hz:  # else a newer one is there
                time.sleep(max(taken_s - time.monotonic(), 0.0))
                yield self._clip.retrieve()[1], taken_s
