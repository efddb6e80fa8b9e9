import json
import time

import edgert

with edgert.Pipeline("robot.yaml") as pipeline, open("out/robot.jsonl", "w") as out:
    pipeline.latest("track", timeout=30.0)
    due = time.monotonic()
    while pipeline.running:
        result = pipeline.latest("track", timeout=1.0)
        age_s = (time.monotonic_ns() - result.timestamp_ns) / 1e9
        best = max(result.detections, key=lambda one: one.score, default=None)
        turn = (best.box[0] + best.box[2]) / 640 - 1 if best else 0.0
        print(json.dumps({"turn": round(float(turn), 3), "age": round(age_s, 4)}), file=out)
        due += 0.05
        time.sleep(max(due - time.monotonic(), 0.0))
