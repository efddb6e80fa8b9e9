"""Ranges measured: values counted image by image, and thresholds chosen from the counts."""
