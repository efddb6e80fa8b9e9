import cv2
import numpy as np
import onnxruntime as ort
import supervision as sv


class Detector:
    def __init__(self, path, score=0.4, iou=0.5):
        self.session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        model_input = self.session.get_inputs()[0]
        self.name, (self.height, self.width) = model_input.name, model_input.shape[2:]
        self.score, self.iou = score, iou

    def __call__(self, image):
        height, width = image.shape[:2]
        scale = min(self.width / width, self.height / height)
        size = round(width * scale), round(height * scale)
        left, top = (self.width - size[0]) // 2, (self.height - size[1]) // 2
        padded = np.full((self.height, self.width, 3), 114, np.uint8)
        padded[top : top + size[1], left : left + size[0]] = cv2.resize(image, size)
        blob = cv2.dnn.blobFromImage(padded, 1 / 255, swapRB=True)
        rows = self.session.run(None, {self.name: blob})[0][0].T
        scores = rows[:, 4:].max(axis=1)
        rows, scores = rows[scores >= self.score], scores[scores >= self.score]
        boxes = (sv.xcycwh_to_xyxy(rows[:, :4]) - [left, top, left, top]) / scale
        found = sv.Detections(xyxy=boxes, confidence=scores, class_id=rows[:, 4:].argmax(axis=1))
        return found.with_nms(self.iou)


def records(found):
    ids = found.tracker_id.tolist() if found.tracker_id is not None else [None] * len(found)
    rows = zip(found.xyxy.tolist(), found.confidence.tolist(), found.class_id.tolist(), ids, strict=True)
    return [{"box": box, "score": score, "class": number, "id": one} for box, score, number, one in rows]
