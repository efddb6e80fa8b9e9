"""Decoders of other tasks than test_accuracy.py's on real models and photos: what they find is where it is."""

from itertools import islice

import cv2
import numpy as np

from edgert.config.model_section import DetectTask, SegmentTask
from edgert.runtime.records import Detections, Segmentation
from edgert.stages.decode.kinds import decoder_for
from tests.helpers.evaluation_data import Network, Photo, photos

PERSON, VOC_PERSON = 0, 15


def with_people(limit: int) -> list[Photo]:
    return list(islice((photo for photo in photos("coco_val") if (photo.categories == PERSON).any()), limit))


def people(photo: Photo) -> np.ndarray:
    return photo.boxes[photo.categories == PERSON]


def inside(photo: Photo) -> np.ndarray:
    """(height, width) 1 where a person's box is."""
    area = np.zeros(photo.image.shape[:2], np.uint8)
    for x1, y1, x2, y2 in people(photo).round().astype(int):
        area[y1:y2, x1:x2] = 1
    return area


def test_people_are_segmented_where_their_boxes_are() -> None:
    network = Network("deeplab_v3_mnv2_05")
    decoder = decoder_for(SegmentTask(segment="argmax"), ())
    person = shared = boxes = 0
    for photo in with_people(16):
        record: Segmentation = decoder(*network.run(photo.image))
        area = inside(photo)
        assert record.region == (0, 0, area.shape[1], area.shape[0])
        mask = (record.mask == VOC_PERSON).astype(np.uint8)
        mask = cv2.resize(mask, area.shape[::-1], interpolation=cv2.INTER_NEAREST)
        person, shared, boxes = person + int(mask.sum()), shared + int((mask & area).sum()), boxes + int(area.sum())
    assert shared / person >= 0.9, "person pixels outside every person's box"
    assert shared / boxes >= 0.4, "a body fills about half of its box"


def test_faces_are_found_in_the_upper_half_of_people() -> None:
    network = Network("ultraface_rfb_320")
    decoder = decoder_for(DetectTask(detect="ssd", score=0.9, iou=0.3), ("face",))
    right = found = 0
    for photo in with_people(64):
        record: Detections = decoder(*network.run(photo.image))
        if len(record) > len(people(photo)):
            continue  # a crowd, of which the file names only some
        x, y = ((record.boxes[:, :2] + record.boxes[:, 2:]) / 2).T[:, :, None]
        x1, y1, x2, y2 = people(photo).T
        right += int(((x > x1) & (x < x2) & (y > y1) & (y < (y1 + y2) / 2)).any(axis=1).sum())
        found += len(record)
    assert found >= 30
    assert right / found >= 0.9


def test_text_is_found_where_it_was_written() -> None:
    """A wide image in a letterbox: the mask is of the image, without the border."""
    network = Network("ppocr_mobile_v2_det_ch", (1, 3, 480, 640))
    decoder = decoder_for(SegmentTask(segment="threshold", threshold=0.3), ("text",))
    image = np.full((360, 640, 3), 200, np.uint8)
    cv2.putText(image, "EXIT 42", (150, 150), cv2.FONT_HERSHEY_SIMPLEX, 2, (20, 20, 20), 5)
    text = image.min(axis=2) < 200
    record: Segmentation = decoder(*network.run(image))
    assert record.mask.shape == (360, 640) and record.region == (0, 0, 640, 360)
    rows, columns = np.flatnonzero(text.any(axis=1)), np.flatnonzero(text.any(axis=0))
    hull = np.zeros_like(text)
    hull[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = True
    found = record.mask.astype(bool)
    assert (found & hull).sum() >= 0.98 * found.sum(), "text where there is none"
    assert found.any(axis=0).sum() >= 0.8 * len(columns), "letters missed"
