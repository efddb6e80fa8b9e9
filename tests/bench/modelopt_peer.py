"""NVIDIA's ModelOpt on a prepared model; runs with the Python that has it, which need not have edgert.

    python modelopt_peer.py PREPARED.onnx FEEDS.npz METHOD OUT.onnx

METHOD is entropy or max; FEEDS holds one array of all images for each input.
"""

from __future__ import annotations

import sys

import numpy as np
from modelopt.onnx.quantization import quantize


def main() -> None:
    model, images, method, out = sys.argv[1:5]
    with np.load(images) as held:
        arrays = {name: held[name] for name in held.files}
    quantize(
        model,
        quantize_mode="int8",
        calibration_data=arrays,
        calibration_method=method,
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        output_path=out,
    )


if __name__ == "__main__":
    main()
