"""Images for calibration, evaluation and checks of models, and their ground truth.

- open_images(folder | glob | video | arrays) → ImageDataset: images by number, in a fair order
- open_dataset(path, task, labels) → LabeledDataset: images and their ground truth, if the path has any
- feed_of(images, model, config) → ImageFeed: images as input tensors of a model
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
