"""The onnxruntime package: found, configured, its errors understood. Nothing else imports it."""

from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

from edgert.backend.base import DEFAULT_TUNING, Tuning
from edgert.board.host import saturates_bytes
from edgert.errors import BuildError, DeviceError
from edgert.graph import Model
from edgert.graph.inspection import unsupported_nodes

_LEVELS = {"all": "ENABLE_ALL", "extended": "ENABLE_EXTENDED", "basic": "ENABLE_BASIC", "none": "DISABLE_ALL"}
_BLOCK_BASE = "4"
"""How finely work is cut for balance: a thread's next piece is a fourth of its share of what is left. The value that
onnxruntime_session_options_config_keys.h gives as its example."""


def ort() -> ModuleType:
    """The package. Raises DeviceError when it is not installed."""
    try:
        import onnxruntime
    except ImportError as error:
        raise DeviceError(
            "ONNX Runtime is not installed", why=str(error), fix="pip install onnxruntime, or onnxruntime-gpu"
        ) from error
    module: ModuleType = onnxruntime
    return module


@lru_cache(maxsize=1)
def ort_errors() -> tuple[type[Exception], ...]:
    """What onnxruntime raises."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found = [value for value in vars(state).values() if isinstance(value, type) and issubclass(value, Exception)]
    return (*found, RuntimeError, ValueError)


def first_line(error: Exception) -> str:
    """The first line of its message."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def session_settings(threads: int | None, tuning: Tuning = DEFAULT_TUNING) -> Any:
    """Options of a session that runs its nodes one after another, by default; None: all threads.

    Keys of entries: onnxruntime_session_options_config_keys.h,
    https://github.com/microsoft/onnxruntime/blob/main/include/onnxruntime/core/session.
    """
    settings = ort().SessionOptions()
    modes = ort().ExecutionMode
    settings.execution_mode = modes.ORT_PARALLEL if tuning.parallel else modes.ORT_SEQUENTIAL
    settings.graph_optimization_level = getattr(ort().GraphOptimizationLevel, f"ORT_{_LEVELS[tuning.optimization]}")
    settings.enable_cpu_mem_arena = tuning.arena
    if tuning.arena and tuning.shared_arena:
        _open_arena()
        settings.add_session_config_entry("session.use_env_allocators", "1")
    if not tuning.spinning:
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not tuning.prepacking:
        settings.add_session_config_entry("session.disable_prepacking", "1")
    if tuning.balance:
        settings.add_session_config_entry("session.dynamic_block_base", _BLOCK_BASE)
    settings.inter_op_num_threads = (threads or 0) if tuning.parallel else 1
    settings.intra_op_num_threads = threads or 0
    if saturates_bytes():
        settings.add_session_config_entry("session.x64quantprecision", "1")  # exact, by uint8 weights, and slower
    settings.log_severity_level = 3  # its warnings name nodes of the optimized graph, which help nobody
    return settings


@lru_cache(maxsize=1)
def _open_arena() -> None:
    """Makes the arena of the process, which sessions take memory from that ask for it; may be called again."""
    library = ort()
    of_host = library.OrtMemoryInfo("Cpu", library.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, library.OrtMemType.DEFAULT)
    library.create_and_register_allocator(of_host, library.OrtArenaCfg(0, -1, -1, -1))  # no limit, all as usual


def open_session(
    source: str | bytes, settings: Any, model: Model, providers: Sequence[object] = ("CPUExecutionProvider",)
) -> Any:
    """A session on a file or its bytes; ``model`` is what it was made from. Raises BuildError."""
    try:
        return ort().InferenceSession(source, settings, providers=list(providers))
    except ort_errors() as error:
        raise BuildError(
            "ONNX Runtime cannot run this model",
            why=unsupported_nodes(model) or first_line(error),
            where=str(model.path),
            fix="edgert inspect MODEL lists its operators; export it again with standard ones, which all have, or "
            "write your own once with edgert.op, for ONNX Runtime and TensorRT (ops: in the pipeline file)",
        ) from error
