"""INT8 over FP32 speed on this machine, per model, engine and form, and whether ``precision: auto`` takes the faster.

    python tests/bench/bench_int8_speed.py [--json FILE]

Models are calibrated on 32 photos; biases are left as they are, which changes no time. Forms of the INT8 model:
``affine`` (the default: all 255 steps for the values there are) and ``symmetric`` as ONNX Runtime fuses them, and, on
OpenVINO alone, ``gpu``: as TensorRT fuses them. One engine's FP32 and INT8 models run in turns on the same photo,
bound once, on all cores and on one thread, twice in each turn, of which the second counts; the speed-up is the median
of the pairwise ratios FP32 / INT8. A form's cosine is the least over outputs and photos between the engine's and a
simulation of the same model, node by node as the ONNX standard says; an engine that is fast and wrong shows there.
Beside it is the simulation's own to FP32.

For ``auto`` FP32 and the affine form are measured once more, ``fastest`` is asked, and what it takes must not be
slower than the other by more than TIE. OpenVINO is measured where it is installed. EDGERT_BENCH_MODELS and
EDGERT_BENCH_ROUNDS try it quickly.
"""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache

import numpy as np
import report
from zoo import NEEDED, calibration_folder, chosen, model_config, rounds

from edgert.backend import Engine, Session
from edgert.backend.ort import Function
from edgert.benchmark.measure import Figure, in_turn, median_ratio, wall_ms
from edgert.board.host import core_count
from edgert.config import ModelConfig
from edgert.engine import build_engine
from edgert.graph import Model
from edgert.quantization.calibrated import Calibrated, calibrate_section
from edgert.quantization.quantizer import Quantizer, Recipe, for_this_machine
from edgert.quantization.throughput import fastest

MODELS = ("squeezenet_fp32", "mobilenet_v1_025_224", "yolox_nano_416", "nanodet_m_320")
ROUNDS, WARM, IMAGES, COMPARED = 41, 3, 32, 4
TIE = 1.05
"""Runs that differ by less are equally fast here."""
ENGINES = {"ort": "ONNX Runtime"} | ({"openvino": "OpenVINO"} if importlib.util.find_spec("openvino") else {})

Outputs = Mapping[str, np.ndarray]


@cache
def calibrated(name: str) -> Calibrated:
    """A model's ranges."""
    images = {"images": str(calibration_folder(name)), "limit": IMAGES, "early_stop": False}
    return calibrate_section(model_config(name, calibrate=images))


@cache
def forms(name: str) -> Mapping[str, Model]:
    """The INT8 models."""
    plain = for_this_machine(Recipe("ort", correct_bias=False))
    recipes = {
        "affine": replace(plain, activation="affine"),
        "symmetric": plain,
        "gpu": Recipe("gpu", correct_bias=False),
    }
    ready = calibrated(name)
    return {form: Quantizer(ready.model, ready.table, recipe).finish().model for form, recipe in recipes.items()}


def on(engine: str, name: str) -> Mapping[str, Model]:
    """The models that an engine runs: FP32 first."""
    made = {form: model for form, model in forms(name).items() if engine == "openvino" or form != "gpu"}
    return {"fp32": calibrated(name).model, **made}


def times_ms(models: Mapping[str, Model], config: ModelConfig, threads: int, image: np.ndarray) -> list[list[float]]:
    """Milliseconds of single runs, model by model, taken in turns."""
    with ExitStack() as stack:
        engines = [stack.enter_context(closing(build_engine(model, config, threads))) for model in models.values()]
        works = [_run(engine.session(), image) for engine in engines]
        in_turn(WARM, *works)
        return in_turn(rounds(ROUNDS), *works)


def _run(session: Session, image: np.ndarray) -> Callable[[], float]:
    (tensor,) = session.inputs.values()
    tensor[:] = image

    def run() -> float:
        session.run()  # meanwhile the other engines' threads, which spin for a while after a run, go to sleep
        return wall_ms(session.run)

    return run


@cache
def simulated(name: str, form: str) -> Sequence[Outputs]:
    """What the standard says a form gives for the first photos."""
    function = Function(on("openvino", name)[form], fused=False)
    return [function(one) for one in calibrated(name).feeds(COMPARED)]


def cosines(name: str, engine: str) -> Mapping[str, float]:
    """Form → the least cosine between what the engine gives and what the standard says."""
    feeds, config, found = calibrated(name).feeds(COMPARED), model_config(name, backend=engine), {}
    for form, model in on(engine, name).items():
        with closing(build_engine(model, config, core_count())) as built:
            given = [_outputs(built, next(iter(one.values()))) for one in feeds]
        found[form] = min(map(_least, simulated(name, form), given))
    return found


def fidelity(name: str, form: str) -> float:
    """The least cosine between FP32 and what the standard says a form gives."""
    return min(map(_least, simulated(name, "fp32"), simulated(name, form)))


def _outputs(engine: Engine, image: np.ndarray) -> Outputs:
    session = engine.session()
    (tensor,) = session.inputs.values()
    tensor[:] = image
    return {one.name: array.copy() for one, array in zip(engine.outputs, session.run(), strict=True)}


def _least(true: Outputs, found: Outputs) -> float:
    return min(_cosine(array.ravel(), found[name].ravel()) for name, array in true.items())


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))


def thread_counts() -> Sequence[int]:
    """All cores, and one."""
    return tuple(dict.fromkeys((core_count(), 1)))


def speeds(name: str, engine: str) -> Iterator[Figure]:
    """One engine's forms against its FP32."""
    right, config = cosines(name, engine), model_config(name, backend=engine)
    (image,) = calibrated(name).feeds(1)[0].values()
    for threads in thread_counts():
        models = on(engine, name)
        taken = dict(zip(models, times_ms(models, config, threads, image), strict=True))
        for form in list(models)[1:]:
            gain = median_ratio(taken["fp32"], taken[form])
            told = {"fp32_ms": statistics.median(taken["fp32"]), "int8_ms": statistics.median(taken[form])}
            title = f"{name}, {ENGINES[engine]}, {form}, threads {threads}: INT8 over FP32"
            detail = {**told, "cosine": right[form], "cosine_to_fp32": fidelity(name, form)}
            yield Figure(title, gain, "×", better="higher", n=len(taken["fp32"]), detail=detail)


def choice(name: str, engine: str) -> Iterator[Figure]:
    """How much slower what ``auto`` takes is than the other."""
    config = model_config(name, backend=engine)
    models = {"fp32": calibrated(name).model, "int8": forms(name)["affine"]}
    (image,) = calibrated(name).feeds(1)[0].values()
    for threads in thread_counts():
        taken = dict(zip(models, times_ms(models, config, threads, image), strict=True))
        took = fastest(models, config, threads)
        other = "fp32" if took.name == "int8" else "int8"
        ratio = median_ratio(taken[took.name], taken[other])
        told = {f"{form}_ms": statistics.median(times) for form, times in taken.items()}
        title = f"{name}, {ENGINES[engine]}, threads {threads}: auto takes {took.name}, its time over the other's"
        yield Figure(title, ratio, "", TIE, n=len(taken["fp32"]), detail=told)


def measure() -> Iterator[Figure]:
    """Every model on every engine."""
    report.needs(*NEEDED)
    if "openvino" not in ENGINES:
        print("  OpenVINO is not installed: pip install -e '.[openvino]'")
    for name in chosen(MODELS):
        for engine in ENGINES:
            yield from speeds(name, engine)
            yield from choice(name, engine)


if __name__ == "__main__":
    report.main("INT8 over FP32 speed", measure)
