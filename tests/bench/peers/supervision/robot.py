import json
import time
from threading import Event, Thread

import numpy as np
from camera import Camera
from detector import Detector
from trackers import ByteTrackTracker

detector, tracker, newest, ready = Detector("detector.onnx"), ByteTrackTracker(), None, Event()


def look():
    global newest
    detector(np.zeros((480, 640, 3), np.uint8))  # the first call is the slowest
    for image, taken_s in Camera("clip.mp4"):
        newest = tracker.update(detector(image)), taken_s
        ready.set()


thread = Thread(target=look)
thread.start()
ready.wait(30)
due = time.monotonic()
with open("out/robot.jsonl", "w") as out:
    while thread.is_alive():
        found, taken_s = newest
        turn = 0.0
        if len(found):
            left, _, right, _ = found.xyxy[found.confidence.argmax()]
            turn = float(left + right) / 640 - 1
        print(json.dumps({"turn": round(turn, 3), "age": round(time.monotonic() - taken_s, 4)}), file=out)
        due += 0.05
        time.sleep(max(due - time.monotonic(), 0.0))
