"""Bar 1: null source → infer → null sink reaches ≥ 0.97 of the bare engine, with yolox_nano.

Both have the same number of threads. The demo's model is measured too, without the bar: its engine takes a fifth of the
time, while preparing an image and decoding its 14 objects cost what they cost.

python tests/bench/bench_overhead.py [--json FILE]
"""

from collections.abc import Iterator
from pathlib import Path

from report import DATA, main

from edgert.benchmark.measure import Figure
from edgert.benchmark.overhead import overhead
from edgert.config import ModelConfig, load_pipeline

COCO = {"task": {"detect": "yolox"}, "input": {"anchor": "top_left", "color": "bgr"}}
HELLO = Path(__file__).parents[2] / "pipelines" / "hello.yaml"


def measure() -> Iterator[Figure]:
    yield overhead(load_pipeline(HELLO).config.models["parts"], rounds=9, frames=120, bar=None)
    path = DATA / "models" / "yolox_nano_416.onnx"
    if path.exists():
        yield overhead(ModelConfig.model_validate({"onnx": str(path), **COCO}), rounds=9, frames=60)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], measure)
