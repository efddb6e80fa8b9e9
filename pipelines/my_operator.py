"""An operator of your own, written once: NumPy for ONNX Runtime, a CUDA kernel for TensorRT.

Name it in a pipeline file, above the models that have it:

    ops: [my_operator.py]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import edgert

KERNEL = """
extern "C" __global__ void hard_mish_lite(Arguments a)
{
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < a.count) {
        const float x = load(a.x, i);
        store(a.y, i, (float)a.alpha * x * fminf(fmaxf(x + 2.0f, 0.0f), 2.0f));
    }
}
"""


@edgert.op("demo::HardMishLite", dtypes=["float32", "float16"], cuda=KERNEL)
def hard_mish_lite(x: npt.NDArray[Any], *, alpha: float = 0.5) -> npt.NDArray[Any]:
    """Mish drawn with straight lines: alpha * x * clip(x + 2, 0, 2). Any shape; the output has the input's."""
    made = np.clip(x + x.dtype.type(2), 0, 2)
    made *= x
    made *= x.dtype.type(alpha)
    return made
