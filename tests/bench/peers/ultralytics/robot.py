import json
import time
from threading import Event, Thread

import numpy as np
from camera import Camera
from ultralytics import YOLO

options = {"conf": 0.4, "iou": 0.5, "imgsz": (256, 320), "device": "cpu", "verbose": False}
model, newest, ready = YOLO("detector.onnx", task="detect"), None, Event()


def look():
    global newest
    model.track(np.zeros((480, 640, 3), np.uint8), persist=True, tracker="bytetrack.yaml", **options)  # loads it
    for image, taken_s in Camera("clip.mp4"):
        newest = model.track(image, persist=True, tracker="bytetrack.yaml", **options)[0], taken_s
        ready.set()


thread = Thread(target=look)
thread.start()
ready.wait(30)
due = time.monotonic()
with open("out/robot.jsonl", "w") as out:
    while thread.is_alive():
        seen, taken_s = newest
        turn = 0.0
        if len(seen.boxes):
            left, _, right, _ = seen.boxes.xyxy[seen.boxes.conf.argmax()].tolist()
            turn = (left + right) / 640 - 1
        print(json.dumps({"turn": round(turn, 3), "age": round(time.monotonic() - taken_s, 4)}), file=out)
        due += 0.05
        time.sleep(max(due - time.monotonic(), 0.0))
