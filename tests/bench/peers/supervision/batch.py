import json
from pathlib import Path

import supervision as sv
from detector import Detector, records

detector = Detector("detector.onnx")
for path in sorted(Path("videos").glob("*.mp4")):
    with open(f"out/{path.stem}.jsonl", "w") as out:
        for image in sv.get_video_frames_generator(str(path)):
            print(json.dumps(records(detector(image))), file=out)
