"""Our calibration and quantization of a model of the evaluation data, in a process of its own so that its memory shows.

    python quantize_own.py MODEL FIRST COUNT OUT.onnx [--correct]

Images FIRST to FIRST + COUNT of the model's photos, all of them, by the default method; biases are corrected
only with ``--correct``, as the peer does not. Prints JSON: seconds from the model's and the images' files to the INT8
file; of the parts; of processor time; peak resident bytes of the whole process, and before it began.
"""

import json
import sys
import time
from pathlib import Path

from zoo import model_config, photos, some

from edgert.graph import to_bytes
from edgert.meters import peak_rss_bytes
from edgert.quantization.calibrated import calibrate_section
from edgert.quantization.evaluator import CORRECTION_IMAGES
from edgert.quantization.int8_model import section_recipe
from edgert.quantization.quantizer import Quantizer


def main() -> None:
    name, first, count, out = sys.argv[1:5]
    correct = "--correct" in sys.argv
    images = some(photos(name), int(first), int(count))
    before = peak_rss_bytes()
    started, cpu = time.perf_counter(), time.process_time()
    asked = {"images": str(images.paths[0].parent), "early_stop": False}
    config = model_config(name, calibrate=asked, quantize={"correct_bias": correct})
    calibrated = calibrate_section(config, target="ort", images=images)
    counted, counted_peak = time.perf_counter(), peak_rss_bytes()
    feeds = calibrated.feeds(CORRECTION_IMAGES) if correct else ()
    made = Quantizer(calibrated.model, calibrated.table, section_recipe(config, "ort"), feeds).finish()
    Path(out).write_bytes(to_bytes(made.model))
    ended = time.perf_counter()
    figures = {"seconds": ended - started, "calibrate": counted - started, "quantize": ended - counted}
    figures["cpu"] = time.process_time() - cpu
    print(json.dumps({**figures, "peak": peak_rss_bytes(), "calibrate peak": counted_peak, "before": before}))


if __name__ == "__main__":
    main()
