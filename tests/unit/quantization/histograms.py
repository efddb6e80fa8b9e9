"""Histograms of a few numbers."""

import numpy as np

from edgert.quantization.calibration.value_histogram import Histogram


def of(*arrays: object) -> Histogram:
    """Return the histogram of numbers and arrays, counted one after the other as float32."""
    histogram = Histogram()
    for array in arrays:
        histogram.add(np.asarray(array, np.float32))
    return histogram
