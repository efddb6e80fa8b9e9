"""Motion of boxes: Kalman filters with constant velocity for all tracks at once, in two published forms.

ByteTrack follows center, aspect and height of a box, as SORT's successors do (N. Wojke et al., "Simple Online and
Realtime Tracking with a Deep Association Metric", ICIP 2017). BoT-SORT follows center, width and height (N. Aharon et
al., "BoT-SORT: Robust Associations Multi-Pedestrian Tracking", 2022, arXiv:2206.14651, section 3.1). In both the noise
is relative to the size of the box, and the four numbers of a box are independent. So two variances and one covariance
per number are the complete covariance matrix. A rotating camera mixes x and y; only the diagonal of that is kept.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

ROWS = 20
"""Rows of the state: 4 numbers of a box, their velocities, variances, covariances, and variances of velocities."""
_POSITION, _VELOCITY = 1 / 20, 1 / 160  # standard deviations per size (ByteTrack's and BoT-SORT's published code)
_FIRST_POSITION, _FIRST_VELOCITY = 2 * _POSITION, 10 * _VELOCITY


@dataclass(frozen=True, slots=True)
class Motion:
    """One form of the filter.

    Attributes:
        has_aspect: whether the third number is width over height, not the width.
        sized_by: for each number, the row of the size that its noise is relative to.
        frozen: rows whose velocity becomes 0 while an object is not seen.
        first, process, measured: standard deviations of the third number if it is an aspect.
    """

    has_aspect: bool
    sized_by: tuple[int, int, int, int]
    frozen: slice
    first: tuple[float, float] = (1e-2, 1e-5)
    process: tuple[float, float] = (1e-2, 1e-5)
    measured: float = 1e-1

    def numbers(self, sides: F64) -> F64:
        """Convert (4, N) x1, y1, x2, y2 to the filter's numbers."""
        size = sides[2:] - sides[:2]
        found = np.concatenate((sides[:2] + size / 2, size))
        if self.has_aspect:
            np.divide(size[0], size[1], out=found[2], where=size[1] != 0)
        return found

    def sides(self, numbers: F64) -> F64:
        """Convert the filter's (4, N) numbers to x1, y1, x2, y2."""
        found: F64 = numbers.copy()
        if self.has_aspect:
            found[2] *= found[3]
        found[:2] -= found[2:] / 2
        found[2:] += found[:2]
        return found

    def start(self, state: F64, numbers: F64) -> None:
        """Write (20, N) columns of new objects, at rest."""
        noise = self._noise(numbers)
        state[:4], state[4:8], state[12:16] = numbers, 0.0, 0.0
        state[8:12], state[16:] = noise * _FIRST_POSITION**2, noise * _FIRST_VELOCITY**2
        if self.has_aspect:
            state[10], state[18] = self.first[0] ** 2, self.first[1] ** 2

    def predict(self, state: F64, is_lost: npt.NDArray[np.bool_], moves: npt.NDArray[np.bool_]) -> None:
        """Advance ``state``, (20, N), by one time step, in place.

        Args:
            state: (20, N) columns of the filter.
            is_lost: (N,) True for objects that the last update did not see.
            moves: (N,) False for objects at rest, whose uncertainty does not change.
        """
        numbers, velocity, variance, covariance, velocity_variance = state.reshape(5, 4, -1)
        velocity[self.frozen] *= ~is_lost
        noise = self._noise(numbers)
        noise *= moves
        own = velocity_variance * moves
        numbers += velocity
        variance += covariance  # P becomes [[1, 1], [0, 1]] P [[1, 0], [1, 1]] + Q
        covariance += own
        variance += covariance
        if self.has_aspect:
            variance[2] += self.process[0] ** 2 * moves
            velocity_variance[2] += self.process[1] ** 2 * moves
        variance += noise * _POSITION**2
        velocity_variance += noise * _VELOCITY**2

    def correct(self, state: F64, seen: F64, is_seen: npt.NDArray[np.bool_]) -> None:
        """Correct ``state`` by measured boxes, in place.

        Args:
            state: (20, N) columns of the filter.
            seen: (4, N) numbers of each object's measured box; any values for an object that was not seen.
            is_seen: (N,) False for objects that stay as predicted.
        """
        numbers, velocity, variance, covariance, velocity_variance = state.reshape(5, 4, -1)
        total = self._noise(numbers)
        total *= _POSITION**2
        if self.has_aspect:
            total[2] = self.measured**2
        total += variance
        weight = is_seen / total
        gain, velocity_gain = variance * weight, covariance * weight
        surprise = seen - numbers
        velocity += velocity_gain * surprise
        surprise *= gain
        numbers += surprise
        velocity_gain *= covariance
        velocity_variance -= velocity_gain
        np.subtract(1.0, gain, out=gain)
        variance *= gain
        covariance *= gain

    def warp(self, state: F64, affine: F64) -> None:
        """Move all objects with the camera, in place.

        ``affine`` (2, 3) maps pixels of the last frame to pixels of this one.
        """
        turn, shift = affine[:, :2], affine[:, 2]
        pairs = state.reshape(5, 2, 2, -1)
        pairs[:2] = np.einsum("ij,abjn->abin", turn, pairs[:2])
        pairs[2:] = np.einsum("ij,abjn->abin", turn**2, pairs[2:])
        state[:2] += shift[:, None]

    def _noise(self, numbers: F64) -> F64:
        """Return (4, N) squared sizes that noise is relative to; 0 for an aspect."""
        noise: F64 = numbers.take(self.sized_by, axis=0)
        noise *= noise
        if self.has_aspect:
            noise[2] = 0.0
        return noise


ASPECT_AND_HEIGHT = Motion(True, (3, 3, 3, 3), slice(3, 4))
"""Motion of ByteTrack."""
WIDTH_AND_HEIGHT = Motion(False, (2, 3, 2, 3), slice(2, 4))
"""Motion of BoT-SORT."""
