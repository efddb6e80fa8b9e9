"""ONNX Runtime's own quantizer on a model of the evaluation data, in a process of its own so that its memory shows.

    python quantize_peer.py MODEL METHOD FIRST COUNT OUT.onnx

METHOD is Entropy, Percentile or MinMax; images FIRST to FIRST + COUNT of the model's photos are decoded and
preprocessed one by one, when its data reader is asked for the next. Prints JSON: seconds of quantize_static, from the
prepared model's file to the quantized one, and of processor time; seconds of making that file ready for it, which are
not among them; peak resident bytes of the whole process, and before quantize_static began.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from zoo import feeds, prepared

from edgert.graph import Model, to_bytes
from edgert.meters import peak_rss_bytes


class Reader(CalibrationDataReader):
    def __init__(self, name: str, model: Model, first: int, count: int) -> None:
        self._feeds = feeds(name, model, first, count)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def main() -> None:
    name, method, first, count, out = sys.argv[1:6]
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path, pre = Path(folder) / "model.onnx", Path(folder) / "pre.onnx"
        model = prepared(name)
        path.write_bytes(to_bytes(model))
        quant_pre_process(str(path), str(pre), skip_symbolic_shape=True)
        ready, cpu, before = time.perf_counter(), time.process_time(), peak_rss_bytes()
        quantize_static(
            str(pre),
            out,
            Reader(name, model, int(first), int(count)),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            calibrate_method=getattr(CalibrationMethod, method),
        )
    figures = {"seconds": time.perf_counter() - ready, "cpu": time.process_time() - cpu, "ready": ready - started}
    print(json.dumps({**figures, "peak": peak_rss_bytes(), "before": before}))


if __name__ == "__main__":
    main()
