import json

import cv2
import numpy as np
import onnxruntime as ort
import supervision as sv
from detector import Detector, records

NAMES = ["bolt", "nut", "washer", "gear", "bracket"]
detector = Detector("detector.onnx")
session = ort.InferenceSession("kinds.onnx", providers=["CPUExecutionProvider"])


def kind(image, box):
    crop = cv2.resize(sv.crop_image(image, box), (48, 48))
    blob = cv2.dnn.blobFromImage(crop, 1 / 255, swapRB=True)
    return NAMES[int(np.argmax(session.run(None, {"images": blob})[0]))]


with open("out/cascade.jsonl", "w") as out:
    for image in sv.get_video_frames_generator("clip.mp4"):
        found = detector(image)
        objects = [{**one, "kind": kind(image, box)} for one, box in zip(records(found), found.xyxy, strict=True)]
        print(json.dumps(objects), file=out)
