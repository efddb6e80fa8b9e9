"""Measuring ranges: values are counted image by image, and thresholds chosen from the counts."""
