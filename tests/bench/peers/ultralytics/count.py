import json

import cv2
from ultralytics import solutions

counter = solutions.ObjectCounter(
    model="detector.onnx", region=[(320, 480), (320, 0)], conf=0.4, iou=0.5, tracker="bytetrack.yaml", show=False,
    verbose=False, device="cpu", imgsz=(256, 320),
)  # fmt: skip
clip = cv2.VideoCapture("clip.mp4")
with open("out/count.jsonl", "w") as out:
    while True:
        ok, image = clip.read()
        if not ok:
            break
        seen = counter(image)
        print(json.dumps({"in": seen.in_count, "out": seen.out_count, "tracks": seen.total_tracks}), file=out)
