import json
from threading import Thread

from ultralytics import YOLO

options = {"stream": True, "conf": 0.4, "iou": 0.5, "imgsz": (256, 320), "device": "cpu", "verbose": False}


def follow(name):
    model = YOLO("detector.onnx", task="detect")  # a model for each: it keeps the tracker
    with open(f"out/{name}.jsonl", "w") as out:
        for seen in model.track(f"{name}.mp4", tracker="bytetrack.yaml", **options):
            print(json.dumps(seen.summary()), file=out)


threads = [Thread(target=follow, args=(name,)) for name in ("north", "east", "south", "west")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
