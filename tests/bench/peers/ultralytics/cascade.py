import json

from ultralytics import YOLO
from ultralytics.utils.plotting import save_one_box

detector, kinds = YOLO("detector.onnx", task="detect"), YOLO("kinds.onnx", task="classify")
options = {"stream": True, "conf": 0.4, "iou": 0.5, "imgsz": (256, 320), "device": "cpu", "verbose": False}
with open("out/cascade.jsonl", "w") as out:
    for seen in detector.predict("clip.mp4", **options):
        objects = []
        for box in seen.boxes:
            crop = save_one_box(box.xyxy, seen.orig_img, BGR=True, save=False)
            kind = kinds.predict(crop, imgsz=48, device="cpu", verbose=False)[0]
            objects.append({"box": box.xyxy[0].tolist(), "kind": kind.names[kind.probs.top1]})
        print(json.dumps(objects), file=out)
