import json
from threading import Thread

import supervision as sv
from detector import Detector, records
from trackers import ByteTrackTracker

detector = Detector("detector.onnx")  # ONNX Runtime's sessions take several threads


def follow(name):
    tracker = ByteTrackTracker()
    with open(f"out/{name}.jsonl", "w") as out:
        for image in sv.get_video_frames_generator(f"{name}.mp4"):
            print(json.dumps(records(tracker.update(detector(image)))), file=out)


threads = [Thread(target=follow, args=(name,)) for name in ("north", "east", "south", "west")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
