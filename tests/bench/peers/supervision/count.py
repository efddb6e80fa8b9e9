import json

import supervision as sv
from detector import Detector, records
from trackers import ByteTrackTracker

detector, tracker = Detector("detector.onnx"), ByteTrackTracker()
gate = sv.LineZone(start=sv.Point(320, 480), end=sv.Point(320, 0), triggering_anchors=[sv.Position.CENTER])
with open("out/count.jsonl", "w") as out:
    for image in sv.get_video_frames_generator("clip.mp4"):
        found = tracker.update(detector(image))
        gate.trigger(found)
        counts = {"in": gate.in_count, "out": gate.out_count}
        print(json.dumps({**counts, "objects": records(found)}), file=out)
