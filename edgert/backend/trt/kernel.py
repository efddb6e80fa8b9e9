"""The CUDA source of an operator made whole: the struct that its kernel takes, and how a value is read and written.

    struct Arguments {
        const float *x; long long x_size[8];      for every input and output: where it is, and its sizes
        float *y; long long y_size[8];
        long long count;                          elements of the first output: one thread for each
        double alpha;                             attributes: double or long long
    };
    load(a.x, i) → float        store(a.y, i, float)        of any type, float16 included

Everything in it takes eight bytes, so that nobody pads.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from edgert.operator import Operator

MOST_DIMENSIONS = 8
"""Of a tensor of TensorRT: Dims::MAX_DIMS."""
_TYPES = {
    "float32": "float",
    "float16": "half",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int32": "int",
    "int64": "long long",
    "bool": "bool",
}
_ACCESS = """
struct half { unsigned short bits; };
template <class T> __device__ float load(const T *p, long long i) { return (float)p[i]; }
template <class T> __device__ void store(T *p, long long i, float v) { p[i] = (T)v; }
__device__ inline float load(const half *p, long long i)
{
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(p[i].bits));
    return wide;
}
__device__ inline void store(half *p, long long i, float v)
{
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(p[i].bits) : "f"(v));
}
"""


def source(one: Operator, dtypes: Sequence[str]) -> str:
    """CUDA C for tensors of these types, inputs first."""
    names = (*one.inputs, *one.outputs)
    lines = ["struct Arguments {"]
    for name, dtype in zip(names, dtypes, strict=True):
        const = "const " if name in one.inputs else ""
        lines.append(f"    {const}{_TYPES[dtype]} *{name}; long long {name}_size[{MOST_DIMENSIONS}];")
    lines.append("    long long count;")
    lines += [f"    {kind} {name};" for name, kind in _numbers(one).items()]
    return "\n".join([_ACCESS.strip(), *lines, "};", one.cuda.strip(), ""])


def arguments(
    one: Operator, addresses: Sequence[int], shapes: Sequence[Sequence[int]], settings: Mapping[str, Any]
) -> tuple[bytes, int]:
    """The struct for one launch, and how many threads it needs."""
    packed = b""
    for address, shape in zip(addresses, shapes, strict=True):
        sizes = [*shape, *[1] * (MOST_DIMENSIONS - len(shape))]
        packed += struct.pack(f"<Q{MOST_DIMENSIONS}q", address, *sizes)
    count = math.prod(shapes[len(one.inputs)])
    packed += struct.pack("<q", count)
    for name, kind in _numbers(one).items():
        packed += struct.pack("<d" if kind == "double" else "<q", settings[name])
    return packed, count


def _numbers(one: Operator) -> dict[str, str]:
    """Attributes that a kernel is told, with their C types; texts are for the function only."""
    found = {name: default for name, default in one.attributes.items() if not isinstance(default, str)}
    return {name: "double" if isinstance(value, float) else "long long" for name, value in found.items()}
