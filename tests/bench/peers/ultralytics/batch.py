import json
from pathlib import Path

from ultralytics import YOLO

options = {"stream": True, "conf": 0.4, "iou": 0.5, "imgsz": (256, 320), "device": "cpu", "verbose": False}
files = {}
for seen in YOLO("detector.onnx", task="detect").predict("videos", **options):
    name = Path(seen.path).stem
    if name not in files:
        files[name] = open(f"out/{name}.jsonl", "w")
    print(json.dumps(seen.summary()), file=files[name])
for file in files.values():
    file.close()
