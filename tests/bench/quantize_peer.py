"""ONNX Runtime's own quantiser on a model of the evaluation data, in a process of its own so that its memory shows.

    python quantize_peer.py MODEL METHOD FIRST COUNT OUT.onnx [--plain]

METHOD is Entropy, Percentile or MinMax. Prints JSON: seconds and peak resident bytes of quantize_static alone, with
the pictures made ready before; ``--plain`` only makes the pictures ready, to tell what those take.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from zoo import calibration_folder, model_path, tensors

from edgert.board.host import core_count
from edgert.budget import peak_rss_bytes
from edgert.graph import clean, load, to_bytes
from edgert.quantize.prepare import prepare


class Reader(CalibrationDataReader):
    """Hands out ready tensors one by one."""

    def __init__(self, name: str, arrays: list[np.ndarray]) -> None:
        self._feeds: Iterator[dict[str, np.ndarray]] = iter([{name: array} for array in arrays])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def main() -> None:
    model, method, first, count, out = sys.argv[1:6]
    pictures = sorted(calibration_folder(model).glob("*.jpg")) + sorted(calibration_folder(model).glob("*.JPEG"))
    chosen = pictures[int(first) : int(first) + int(count)]
    arrays = tensors(model, chosen)
    # Its quantiser makes invalid graphs of models that list their weights among the inputs, and per-channel weights
    # need opset 13: it gets the model as we prepare it for ourselves.
    ready = prepare(clean(load(model_path(model)))[0])
    name = next(item.name for item in ready.proto.graph.input)
    before = peak_rss_bytes()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path, pre = Path(folder) / "model.onnx", Path(folder) / "pre.onnx"
        path.write_bytes(to_bytes(ready))
        if "--plain" not in sys.argv:
            quant_pre_process(str(path), str(pre), skip_symbolic_shape=True)
            quantize_static(
                str(pre),
                out,
                Reader(name, arrays),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                calibrate_method=getattr(CalibrationMethod, method),
            )
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "peak": peak_rss_bytes(), "before": before, "cores": core_count()}))


if __name__ == "__main__":
    main()
