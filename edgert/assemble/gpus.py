"""Several GPUs in one process: which of them a pipeline uses, and which stream's frames go to which.

A stream stays on its GPU from its decoder to its results, so that nothing of it is copied from one to the other, and
its frames need not be put back in order. Every GPU that has streams has engines of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgert.assemble.default_engines import leaves_engine
from edgert.backend import Engine
from edgert.backend.chain import Replicated
from edgert.board.devices import GpuDevice, cuda_driver
from edgert.config import InferStage, PipelineConfig, PipelineFile, engine_choice, flow, stages
from edgert.errors import ConfigError
from edgert.placement.segment_engines import SegmentedEngine
from edgert.stages.source.kinds import is_live

FIRST = (0,)
"""The only one of most machines."""
GPU_BACKENDS = (engine_choice.TENSORRT, engine_choice.ORT_CUDA)
"""Those of ``backend:`` have the same names."""
_CAMERA_HZ = 30.0
_FILE_HZ = 300.0
"""Of a file that is worked through as fast as it can be, beside cameras."""


def gpus_of(file: PipelineFile, here: Sequence[GpuDevice] | None = None) -> tuple[int, ...]:
    """Numbers of the GPUs that a pipeline uses: those of ``gpus:``, else all that are here; the first alone where its
    engines are not on GPUs, or there are none.

    Args:
        here: the GPUs of this machine by default.

    Raises:
        ConfigError: ``gpus:`` names one that is not here, on a machine with others.
    """
    config = file.config
    if set(config.engines).isdisjoint(GPU_BACKENDS):
        return FIRST
    here = gpus_here() if here is None else here
    numbers = config.gpus or tuple(range(len(here)))
    for number in numbers if here else ():
        if number >= len(here):
            named = ", ".join(f"{index}: {one.name}" for index, one in enumerate(here))
            raise ConfigError(
                f"there is no GPU {number}",
                why=f"this machine has {len(here)} ({named})",
                where=file.where("gpus" if "gpus" in file.document.data else "engines"),
                fix="name those that are here, or none: then all are used",
            )
    return numbers if here else FIRST


def streams_on(file: PipelineFile, gpus: Sequence[int]) -> dict[str, int]:
    """The GPU of each source, for a pipeline that uses these."""
    return spread(costs_of(file), gpus)


def costs_of(file: PipelineFile) -> dict[str, float]:
    """What each source gives a GPU to do, estimated before it is opened: runs of models per second; 0 of one that no
    model looks at."""
    config, directory = file.config, file.document.path.parent
    streams = flow.sources_of(config.stages)
    sources = {name: one for name, one in config.stages.items() if isinstance(one, stages.SourceStage)}
    rates = {
        name: one.fps or (_CAMERA_HZ if one.realtime or is_live(one, directory) else _FILE_HZ)
        for name, one in sources.items()
    }
    costs = dict.fromkeys(sources, 0.0)
    for name, stage in config.stages.items():
        if isinstance(stage, InferStage):
            for source in streams[name]:
                costs[source] += rates[source] / stage.every
    return costs


def spread(costs: Mapping[str, float], gpus: Sequence[int]) -> dict[str, int]:
    """Streams to GPUs so that the most loaded has little: the costliest first, each to the GPU that has least so far.

    That is longest-processing-time-first, which gives at most 4/3 of what is best: R. L. Graham, Bounds on
    Multiprocessing Timing Anomalies, SIAM J. Appl. Math. 17 (1969), https://doi.org/10.1137/0117039.
    """
    loads, found = dict.fromkeys(gpus, 0.0), dict.fromkeys(costs, gpus[0])
    for name in sorted(filter(costs.get, costs), key=costs.__getitem__, reverse=True):  # equal ones as in the file
        gpu = found[name] = min(loads, key=loads.__getitem__)
        loads[gpu] += costs[name]
    return found


def in_words(placed: Mapping[str, int], here: Sequence[GpuDevice] | None = None) -> str:
    """Which source goes to which GPU: ``a, c on GPU 0 (NVIDIA H200); b on GPU 1 (NVIDIA H200)``."""
    names = [one.name for one in (gpus_here() if here is None else here)]
    found = []
    for gpu in sorted(set(placed.values())):
        streams = [name for name, one in placed.items() if one == gpu]
        named = f" ({names[gpu]})" if gpu < len(names) else ""
        found.append(f"{', '.join(streams)} on GPU {gpu}{named}")
    return "; ".join(found)


def gpus_here() -> Sequence[GpuDevice]:
    """The NVIDIA GPUs that this machine's driver drives."""
    driver = cuda_driver()
    return driver.gpus if driver is not None else ()


def is_for_gpu(config: PipelineConfig, stage: InferStage) -> bool:
    """Whether every model of a stage may run on a GPU, so that each GPU has its own."""
    models = [config.models[name] for name in flow.variants_of(config.models, stage.infer)]
    return all(leaves_engine(one) or one.backend in GPU_BACKENDS for one in models)


def share_name(stage: str, number: int, gpu: int) -> str:
    """What the nodes are called that run a stage on a GPU: the stage's own name for the first."""
    return f"{stage}@{gpu}" if number else stage


Engines = Mapping[str, "Engine | SegmentedEngine"]


def together(engines: Mapping[int, Engines]) -> Engines:
    """Every model's engine by the model's name, where each GPU has engines of its own: of several GPUs, all as one,
    whose ``info`` has their numbers. Engines of the first GPU alone are as they are."""
    if list(engines) == list(FIRST):
        return engines[0]
    found: dict[str, Engine | SegmentedEngine] = {}
    for name in dict.fromkeys(name for own in engines.values() for name in own):
        parts = list[tuple[Engine, int]]()
        for gpu, own in engines.items():
            made = own.get(name)
            if isinstance(made, Engine):
                made.info = {**made.info, "gpus": [gpu]}
                parts.append((made, 1))
            elif made is not None:
                found[name] = made  # on cores of the processor
        if len(parts) == 1:
            found[name] = parts[0][0]
        elif parts:
            whole = Replicated(parts)
            whole.info = {**whole.info, "gpus": [gpu for gpu, own in engines.items() if name in own]}
            found[name] = whole
    return found


def devices_of(engine: Engine | SegmentedEngine) -> Iterator[Any]:
    """The GPUs that an engine is on."""
    for part in [one for one, _ in engine.parts] if isinstance(engine, Replicated) else [engine]:
        if (device := getattr(part, "device", None)) is not None:
            yield device
