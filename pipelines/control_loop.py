"""A control loop: each image in, its result out, in one thread, by a pipeline that is called.

python pipelines/control_loop.py [FRAMES]

The pipeline is arm.yaml, whose source this program is. Its file is written to out/.
"""

from __future__ import annotations

import sys
import time

from conveyor import Conveyor

import edgert

WIDTH, HEIGHT = 640, 480


def steer(result: edgert.Result) -> float:
    """Where the part with the best score is, -1 at the left edge to 1 at the right; 0 where there is none."""
    boxes = result.detections.boxes
    return float(boxes[0, 0] + boxes[0, 2]) / WIDTH - 1 if len(boxes) else 0.0


def main(count: int) -> None:
    """Runs the loop."""
    belt, slowest_ms, turned = Conveyor(WIDTH, HEIGHT, fps=30, seed=7), 0.0, 0.0
    with edgert.Pipeline("arm") as pipeline:
        for index in range(count):
            with pipeline.buffer((WIDTH, HEIGHT)) as buffer:  # a GPU reads it as it lies
                belt.render(index, buffer.array)  # here a camera would write
                started = time.perf_counter()
                result = pipeline(buffer)
            if index:  # the first call opens files and warms the model up
                slowest_ms = max(slowest_ms, (time.perf_counter() - started) * 1e3)
            turned += abs(steer(result))
        summary = pipeline.summary()
    print(f"{summary.frames_out} results, {summary.dropped} dropped, {slowest_ms:.1f} ms at most, turned {turned:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
