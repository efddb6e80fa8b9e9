"""Import and configuration of onnxruntime, its errors, and engines and sessions whose tensors are bound once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from types import ModuleType
from typing import Any, BinaryIO

from edgert.backend import base
from edgert.board.host import saturates_bytes
from edgert.config.model_section import TuningConfig
from edgert.errors import BuildError, DeviceError, EdgertError, ModelError, raised_as
from edgert.files import memory_file
from edgert.graph import Model
from edgert.graph.inspection import unsupported_nodes
from edgert.memory import aligned_empty

_LEVELS = {"all": "ENABLE_ALL", "extended": "ENABLE_EXTENDED", "basic": "ENABLE_BASIC", "none": "DISABLE_ALL"}
_BLOCK_BASE = "4"
"""Granularity of balanced work: a thread's next block is a fourth of its share of the rest. The value is the example of
onnxruntime_session_options_config_keys.h."""


def ort() -> ModuleType:
    """Return the onnxruntime package. Raises DeviceError if it is not installed."""
    with raised_as(DeviceError, "ONNX Runtime is not installed", of=ImportError, fix="pip install onnxruntime"):
        import onnxruntime
    module: ModuleType = onnxruntime
    return module


@lru_cache(maxsize=1)
def ort_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that onnxruntime raises."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    errors = [value for value in vars(state).values() if isinstance(value, type) and issubclass(value, Exception)]
    return (*errors, RuntimeError, ValueError)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


_USUAL = TuningConfig()
"""Options of a section without the key ``tuning``."""


def session_settings(threads: int | None, tuning: TuningConfig = _USUAL) -> Any:
    """Return session options; ``threads`` None uses all cores.

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
    elif tuning.spinning == "runs":
        settings.add_session_config_entry("session.force_spinning_stop", "1")
    if not tuning.prepacking:
        settings.add_session_config_entry("session.disable_prepacking", "1")
    if tuning.balance:
        settings.add_session_config_entry("session.dynamic_block_base", _BLOCK_BASE)
    settings.inter_op_num_threads = (threads or 0) if tuning.parallel else 1
    settings.intra_op_num_threads = threads or 0
    if saturates_bytes():
        settings.add_session_config_entry("session.x64quantprecision", "1")  # uint8 weights: exact, but slower
    settings.log_severity_level = 4  # fatal; errors are raised, and warnings name nodes that users do not know
    return settings


@lru_cache(maxsize=1)
def _open_arena() -> None:
    """Create the memory arena that sessions of this process may share. Later calls do nothing."""
    library = ort()
    memory = library.OrtMemoryInfo("Cpu", library.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, library.OrtMemType.DEFAULT)
    library.create_and_register_allocator(memory, library.OrtArenaCfg(0, -1, -1, -1))  # no limit, and defaults


def open_session(
    source: bytes | BinaryIO, settings: Any, model: Model, providers: Sequence[object] = ("CPUExecutionProvider",)
) -> Any:
    """Return a session for an ONNX file of ``model``: its content, or an open file, which is closed. Raises BuildError.

    Content goes into a file in memory: ONNX Runtime would keep it, and parse it with Python's lock held.
    """
    with memory_file(source) if isinstance(source, bytes) else source as file:
        path = f"/proc/self/fd/{file.fileno()}"
        try:
            # No fallback: it would print the error and run the model on the CPU.
            return ort().InferenceSession(path, settings, providers=list(providers), enable_fallback=0)
        except ort_errors() as error:
            raise BuildError(
                "ONNX Runtime cannot run this model",
                why=unsupported_nodes(model) or first_line(error).replace(f"Load model from {path} failed:", ""),
                where=str(model.path),
                fix="export it with standard operators (edgert inspect MODEL lists them), "
                "or write the operator with edgert.op and name it under ops: in the pipeline file",
            ) from error


_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(bool)": "bool",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (16, 32, 64)},
}


class OrtEngine:
    """Model opened by ONNX Runtime, whose sessions may run in parallel; see :class:`~edgert.backend.base.Engine`."""

    def __init__(self, session: Any, profiles: Mapping[str, base.Shapes], path: str, info: Mapping[str, Any]) -> None:
        self._ort_session, self._profiles, self.path = session, profiles, path
        self.info: Mapping[str, Any] = info
        self.profiles = tuple(profiles)
        first = self.session()
        for out in session.get_outputs():
            dtype_of(out, f"output {out.name!r}", path)
        self.inputs = tuple(base.Tensor(name, array.shape, array.dtype.name) for name, array in first.inputs.items())
        with base.deadline(first.interrupt):
            specs, arrays = session.get_outputs(), _run_interruptibly(first)
        self.outputs = tuple(
            base.Tensor(out.name, array.shape, array.dtype.name) for out, array in zip(specs, arrays, strict=True)
        )
        self.outputs_known = not has_open_outputs(session)
        declared = base.share_first_dimension([arg.shape for arg in session.get_inputs()], [out.shape for out in specs])
        rows = first.rows if first.rows > 1 else -1  # an unnamed open first dimension may be the batch
        self.batched = tuple(
            known or (array.shape[:1] == (rows,) and not isinstance(out.shape[0], int))
            for known, out, array in zip(declared, specs, arrays, strict=True)
        )
        self.dynamic_batch = first.dynamic

    def session(self, profile: str | None = None) -> OrtSession:
        shapes = self.shapes_of(profile)
        return OrtSession(self.open_session(), shapes, self.path)

    def shapes_of(self, profile: str | None) -> base.Shapes:
        """Return the shapes of a profile, by default the first. Raises ModelError for an unknown one."""
        return self._profiles[base.checked_profile(profile, self.profiles, self.path)]

    def open_session(self) -> Any:
        """Return the ONNX Runtime session. Raises ModelError after :meth:`close`."""
        if self._ort_session is None:
            raise base.closed_error(self.path)
        return self._ort_session

    def bind(self, inputs: Mapping[str, base.Array], outputs: Mapping[str, base.Array]) -> Callable[[], None]:
        """Return a function that runs the engine once on the caller's tensors and blocks until it is done.

        The tensors are read and written in place and must live as long as the function. One thread at a time may call
        it; it raises BuildError. Arrays are C-contiguous, with the shapes and dtypes of the tensors.
        """
        session, path = self.open_session(), self.path
        binding = session.io_binding()
        for name, array in inputs.items():
            _bind_array(binding.bind_input, name, array)
        for name, array in outputs.items():
            _bind_array(binding.bind_output, name, array)

        def run() -> None:
            try:
                session.run_with_iobinding(binding)
            except ort_errors() as error:
                raise BuildError("ONNX Runtime failed while running", why=first_line(error), where=path) from error

        return run

    def close(self) -> None:
        """Release the ONNX Runtime session."""
        self._ort_session = None


def run_error(error: Exception, options: Any, path: str) -> BuildError:
    """Return the error of a run that failed, or was ended by ``terminate`` of its options, which is reset."""
    if options.terminate:
        options.terminate, fix = False, "if the model has a Loop, check that it ends"
        return BuildError("a run of the model was ended", why="it took too long", where=path, fix=fix)
    return BuildError("ONNX Runtime failed while running", why=first_line(error), where=path)


_POLL_S = 0.2


def _run_interruptibly(session: OrtSession) -> Sequence[base.Array]:
    """Run a session in a thread of its own, so that Ctrl-C, which Python handles in the main thread, can end it."""
    if threading.current_thread() is not threading.main_thread():
        return session.run()
    with ThreadPoolExecutor(1, "edgert:first-run") as pool:  # it waits for the thread: ONNX Runtime must not run on
        outputs = pool.submit(session.run)
        try:
            while not wait([outputs], _POLL_S).done:  # short waits, as another thread may receive the signal
                pass
        except BaseException:
            session.interrupt()
            raise
        try:
            return outputs.result()
        finally:
            del outputs  # else the traceback of an error would keep this frame, and so the session


class OrtSession:
    """Cache-line-aligned host tensors bound to an ONNX Runtime session; see :class:`~edgert.backend.base.Session`."""

    def __init__(self, session: Any, shapes: base.Shapes, path: str) -> None:
        self._session, self._path = session, path
        self.inputs = self._bound_inputs(session.get_inputs(), shapes)
        self.rows = self._row_count()
        self.dynamic = base.has_open_batch(arg.shape for arg in session.get_inputs())
        self._runs: dict[int, Callable[[], Sequence[base.Array]]] = {}
        self._run_options = ort().RunOptions()

    def interrupt(self) -> None:
        """Make the current or next run fail, from any thread. On a GPU, a run that has started is completed first."""
        self._run_options.terminate = True

    def run(self, rows: int | None = None) -> Sequence[base.Array]:
        count = self._checked_rows(rows)
        run = self._runs.get(count)
        try:
            if run is None:
                run = self._runs[count] = self._bind(count)
            return run()
        except ort_errors() as error:
            raise self._run_error(error) from error

    def _checked_rows(self, rows: int | None) -> int:
        return base.checked_rows(rows if self.dynamic else None, self.rows, self._path)

    def _run_error(self, error: Exception) -> EdgertError:
        return run_error(error, self._run_options, self._path)

    def _bound_inputs(self, arguments: Sequence[Any], shapes: base.Shapes) -> Mapping[str, base.Array]:
        return {
            arg.name: base.bound_input(
                arg.name,
                shapes.get(arg.name) or arg.shape,
                dtype_of(arg, f"input {arg.name!r}", self._path),
                self._path,
            )
            for arg in arguments
        }

    def _row_count(self) -> int:
        return base.row_count(self.inputs.values())

    def _bind(self, rows: int) -> Callable[[], Sequence[base.Array]]:
        """Return a run of the first ``rows`` rows of the inputs, into outputs with the shapes of a first run."""
        binding = self._session.io_binding()
        inputs = {name: array[:rows] if rows < self.rows else array for name, array in self.inputs.items()}
        for name, array in inputs.items():
            _bind_array(binding.bind_input, name, array)
        specs = self._session.get_outputs()
        if has_open_outputs(self._session):
            return self._run_with_open_outputs(binding, [out.name for out in specs])
        first = self._session.run(None, inputs, self._run_options)
        outputs = [aligned_empty(array.shape, array.dtype) for array in first]
        for out, array in zip(specs, outputs, strict=True):
            _bind_array(binding.bind_output, out.name, array)
        for array, value in zip(outputs, first, strict=True):
            array[...] = value
        session, options = self._session, self._run_options

        def run() -> Sequence[base.Array]:
            session.run_with_iobinding(binding, options)
            return outputs

        return run

    def _run_with_open_outputs(self, binding: Any, names: Sequence[str]) -> Callable[[], Sequence[base.Array]]:
        """Return a run whose outputs ONNX Runtime allocates, as their sizes depend on the data (NonMaxSuppression)."""
        session, options = self._session, self._run_options

        def run() -> Sequence[base.Array]:
            for name in names:
                binding.bind_output(name, "cpu")
            session.run_with_iobinding(binding, options)
            return [value.numpy() for value in binding.get_outputs()]

        return run


def has_open_outputs(session: Any) -> bool:
    """Return whether an output has a dimension that no input has, so that its size depends on the data."""
    known = {dim for arg in session.get_inputs() for dim in arg.shape if isinstance(dim, str)}
    dims = [dim for out in session.get_outputs() for dim in out.shape]
    return any(dim is None or (isinstance(dim, str) and dim not in known) for dim in dims)


def _bind_array(bind: Callable[..., None], name: str, array: base.Array) -> None:
    bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def dtype_of(arg: Any, what: str, path: str) -> str:
    """Return NumPy's name of the type of an input or output. Raises ModelError unless it is a tensor of such a type."""
    if arg.type not in _DTYPES:
        why, fix = "edgert reads and writes tensors of NumPy's number types", "export it as a tensor of float32"
        raise ModelError(f"{what} has type {arg.type}", why=why, where=path, fix=fix)
    return _DTYPES[arg.type]
