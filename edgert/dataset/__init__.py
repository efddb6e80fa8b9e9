"""Images that models are calibrated, evaluated and checked with, and their ground truth.

- open_images(folder | glob | video | arrays) → ImageDataset: images by number, in a fair order
- open_dataset(path, task, labels) → LabeledDataset: images and, where the path has it, their ground truth
- feed_of(images, model, config) → ImageFeed: the images as the model's input tensors
"""

from edgert.dataset.image_feed import ImageFeed, feed_of
from edgert.dataset.images import ArrayDataset, FileDataset, ImageDataset, VideoDataset, fair_order, open_images
from edgert.dataset.labeled import LabeledDataset, open_dataset
from edgert.dataset.layouts import LOOKED_FOR

__all__ = [
    "LOOKED_FOR",
    "ArrayDataset",
    "FileDataset",
    "ImageDataset",
    "ImageFeed",
    "LabeledDataset",
    "VideoDataset",
    "fair_order",
    "feed_of",
    "open_dataset",
    "open_images",
]
