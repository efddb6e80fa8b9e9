"""ONNX Runtime on an NVIDIA GPU: its CUDA provider, on a stream of ours, over memory of ours.

Tensors are bound once, and fed and read on the GPU or from the host. Provider and run options:
https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from edgert.backend import base
from edgert.backend.gpu import GpuTensor, HostSides, OnHost, Refinement
from edgert.backend.ort import cpu, cuda_model, cuda_preload, layout, runtime
from edgert.backend.ort.fused import Compared, Fused, OwnRun, least_us, turn
from edgert.backend.ort.layout import Layouts
from edgert.board.detect import is_jetson
from edgert.errors import BuildError, DeviceError, EdgertError
from edgert.graph import Model, read, to_bytes, with_shapes
from edgert.graph.count import peak_bytes
from edgert.graph.model import smallest
from edgert.memory.cuda import CudaDevice, Stream, open_device
from edgert.memory.cuda.driver import failed, is_lost
from edgert.units import format_bytes

_PROVIDER = "CUDAExecutionProvider"

log = logging.getLogger("edgert.backend")

_CHANNELS_LAST = {"prefer_nhwc": "1"}
_FUSED = {**_CHANNELS_LAST, "fuse_conv_bias": "1"}
"""Each bias is added by its convolution's kernel, which cuDNN compiles when a size is first run: that takes seconds for
a network, and is done anew by every process, and whenever the size changes. Not known to it without channels last."""

_ERRORS = 3  # ORT_LOGGING_LEVEL_ERROR

_INSTALL = "pip install onnxruntime-gpu in place of onnxruntime: docs/gpu.md has the lines"
_INSTEAD = (
    "engines: [tensorrt], for which scripts/setup-jetson installs what is missing; JetPack 6 (Python 3.10 on aarch64) "
    "has no wheel of onnxruntime-gpu"
)


class OrtCudaBackend:
    """Compiles for the GPU; nodes that the provider cannot take run on the CPU, and ONNX Runtime copies between.

    Float32 models may use TF32 in convolutions, as PyTorch does, by default. The cleaned model is cached in the store,
    and so is what was measured to choose a layout (:mod:`~edgert.backend.ort.layout`); ONNX Runtime's plans of
    convolutions are made anew at every start, since it cannot save them.

    Args:
        device: the GPU; the first one, opened when a model is compiled, by default.
    """

    name = "onnxruntime-cuda"

    def __init__(self, device: CudaDevice | None = None) -> None:
        self._device = device

    def compile(self, model: Model, options: base.EngineOptions) -> OrtCudaEngine:
        """See :class:`~edgert.backend.base.Backend`.

        Raises:
            DeviceError: there is no GPU, no PyCUDA, no CUDA provider, or too little memory on the GPU.
            BuildError: ONNX Runtime cannot take the model, or cannot start its provider.
            ModelError: a profile does not fit, or the size of an output is not known.
        """
        check_provider()
        base.refuse_custom_operators(model, "ONNX Runtime on CUDA")
        started = time.perf_counter()
        device = self._device or open_device()
        profiles = options.profiles or {base.DEFAULT_PROFILE: {}}
        static = next(iter(profiles.values())) if len(profiles) == 1 else {}
        opener = _Opener(model, profiles, static, options, device)
        opener.info["backend"] = self.name
        try:
            layouts = opener.layouts()
            engine = opener.engine(layouts, started)
        except (BuildError, DeviceError) as error:
            if not is_out_of_memory(error):
                raise
            raise too_little(model, static, device) from error
        opener.forget_model()
        return engine


class _Opener:
    """Opens engines of a model with the kernels of one layout or the other.

    Attributes:
        info: of engines that it opens.
    """

    def __init__(
        self,
        model: Model,
        profiles: Mapping[str, base.Shapes],
        static: base.Shapes,
        options: base.EngineOptions,
        device: CudaDevice,
    ) -> None:
        self._model, self._profiles, self._device, self._options = model, profiles, device, options
        self._content: bytes | None
        self._content, cached = cuda_model.cleaned(model, profiles, static, options.store)
        self._settings = runtime.session_settings(options.threads, options.tuning)
        cpu.fix_others(self._settings, model, static)
        version = str(runtime.ort().__version__)
        self.info = {"backend": "", "version": version, "device": device.name, "cached": cached}

    def layouts(self) -> Layouts:
        """What is fastest here, from the cache where it was measured before. Raises BuildError, DeviceError."""
        if not self._options.tuning.channels_last:
            return Layouts(layout.FIRST, layout.FIRST)
        store = self._options.store
        content = store.get(self._key()) if store else None
        times = layout.from_json(content) if content is not None else None
        if times is None:
            times, is_lasting = self._measured()
            if store and is_lasting:
                base.cache_content(store, self._key(), layout.to_json(times))
        found = layout.choose(times)
        self.info["layout"] = layout.in_words(times, found)
        log.info("%s: %s", self._model.path, self.info["layout"])
        return found

    def engine(self, layouts: Layouts, started: float) -> OrtCudaEngine:
        """Opens it; full batches may have a session of their own. Raises BuildError, DeviceError.

        Args:
            started: when compiling began, on time.perf_counter's clock.
        """
        stream, own = self._device.stream(), None if layouts.is_one else self._device.stream()
        free = self._device.free_bytes()[0]
        first = self._session(stream, self._kernels(layouts.few))
        full = None if own is None else (self._session(own, self._kernels(layouts.full)), own)
        self.info["compile_s"] = round(time.perf_counter() - started, 3)
        path, fused = str(self._model.path), self._fused(layouts)
        engine = OrtCudaEngine(first, self._profiles, path, self.info, self._device, stream, fused, full)
        engine.nbytes = max(len(self._content or b""), free - self._device.free_bytes()[0])
        return engine

    def _fused(self, layouts: Layouts) -> Fused | None:
        """For engines that get fused kernels while they run."""
        tuning, store = self._options.tuning, self._options.store
        if tuning.fused not in ("auto", "later") or not tuning.channels_last:
            return None
        kernels = {**self._kernels(layouts.full), **_FUSED}
        return Fused(partial(self._session, kernels=kernels), tuning.fused == "later", store, self._key("cuda fused"))

    def _measured(self) -> tuple[layout.Times, bool]:
        """And whether it would be the same another time: not where a layout was left out for lack of memory. Raises
        the last error where the model cannot be run in any."""
        found, errors, started = dict[str, layout.Measured](), list[BuildError | DeviceError](), time.perf_counter()

        def measure(one: str) -> None:
            engine = None
            try:
                engine = self.engine(Layouts(one, one), time.perf_counter())
                found[one] = layout.measured(engine.session())
            except (BuildError, DeviceError) as error:  # cuDNN may have no kernel for some layer
                errors.append(error)
                _let_go(error)
                log.info("%s: kernels of %s are not used: %s", self._model.path, one, error.why)
            finally:
                if engine is not None:
                    engine.close()

        for one in (layout.LAST, layout.FIRST):
            measure(one)
        if not found:
            raise errors[-1]
        if self._options.tuning.conv_search == "auto":
            best = layout.choose(layout.usable(found, str(self._model.path)))
            for one in sorted({best.few, best.full}):
                measure(one + layout.SEARCHED)
        log.info("%s: layouts timed in %.1f s", self._model.path, time.perf_counter() - started)
        return layout.usable(found, str(self._model.path)), not any(map(is_out_of_memory, errors))

    def _key(self, what: str = "cuda layout") -> str:
        """Of what was measured: it depends on the model, its shapes, the GPU, and what chooses kernels."""
        tuning, device = self._options.tuning, self._device
        here = [device.name, device.architecture, self.info["version"]]
        kernels = [tuning.optimization, tuning.conv_search, tuning.tf32, tuning.fused == "start"]
        shapes = {profile: dict(given) for profile, given in self._profiles.items()}
        facts = json.dumps([what, self._model.digest, shapes, here, kernels], sort_keys=True)
        return hashlib.sha256(facts.encode()).hexdigest()[:32]

    def _kernels(self, one: str) -> Mapping[str, str]:
        """Options of a layout's kernels, and of how cuDNN chooses them."""
        search, of_layout = self._options.tuning.conv_search, dict[str, str]()
        if search == "auto":
            search = "exhaustive" if one.endswith(layout.SEARCHED) else "heuristic"
        if one.startswith(layout.LAST):
            of_layout = _FUSED if self._options.tuning.fused == "start" else _CHANNELS_LAST
        return {"cudnn_conv_algo_search": search.upper(), **of_layout}

    def _session(self, stream: Stream, kernels: Mapping[str, str]) -> Any:
        tuning, content = self._options.tuning, self._cached() if self._content is None else self._content
        provider = {
            "device_id": str(self._device.ordinal),
            "user_compute_stream": str(stream.handle),  # ours, so that its work is ordered with ours
            "arena_extend_strategy": "kSameAsRequested",  # not in powers of two
            **({} if tuning.tf32 else {"use_tf32": "0"}),  # not known to releases before 1.18, where it is on, too
            **kernels,
        }
        cuda_preload.wait()
        with self._device.recording:  # it waits for all work of the GPU, which is an error while any is recorded
            return open_on_gpu(content, self._settings, provider, self._model)

    def forget_model(self) -> None:
        """Drops what the store has, too: engines have a session opened later, or never."""
        if self._options.store is not None:
            empty = type(self._model.proto)()
            self._content, self._model = None, replace(self._model, proto=empty, known_digest=self._model.digest)

    def _cached(self) -> bytes:
        store = self._options.store
        content = store.get(cuda_model.key_of(self._model, self._profiles)) if store else None
        if content is None:
            why = "somebody emptied the cache since the start"
            raise BuildError("the model is no longer cached", why=why, where=str(self._model.path))
        return content


def _let_go(error: BaseException) -> None:
    """Lets go of what the calls that failed had made, such as sessions: an error that is looked at later keeps it."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__


def why_not() -> str:
    """Why this machine cannot run models here, and what to install; empty when it can. Opens the GPU for a
    moment, and loads no model."""
    try:
        check_provider()
        open_device().close()
    except DeviceError as error:
        return ": ".join(filter(None, (error.what, error.why))) + (f" ({error.fix})" if error.fix else "")
    return ""


def check_provider() -> None:
    """Raises DeviceError when the installed ONNX Runtime was built without CUDA."""
    providers = runtime.ort().get_available_providers()
    if _PROVIDER not in providers:
        raise DeviceError(
            "this ONNX Runtime has no CUDA provider",
            why=f"version {runtime.ort().__version__} has {', '.join(providers)}",
            fix=_INSTEAD if is_jetson() else _INSTALL,
        )


def too_little(model: Model, shapes: base.Shapes, device: CudaDevice) -> DeviceError:
    """What a model should take, beside what the GPU has."""
    graph = read(with_shapes(model, shapes) if shapes else model)
    weights = sum(array.nbytes for array in graph.constants.values())
    tensors = peak_bytes(graph)
    return DeviceError(
        "the model does not fit into the memory of the GPU",
        why=f"planned: weights {format_bytes(weights)} and tensors {format_bytes(tensors)}, beside scratch space of "
        f"kernels; actual: {device.room()}",
        where=str(model.path),
        fix="a smaller batch or input size, precision: fp16, or end other programs that use the GPU",
    )


@lru_cache(maxsize=1)
def load_libraries() -> None:
    """Finds CUDA's libraries where pip put them; ONNX Runtime before 1.21 searches the loader's path alone."""
    preload = getattr(runtime.ort(), "preload_dlls", None)
    if preload is not None:
        runtime.ort().set_default_logger_severity(_ERRORS)  # else it warns of plugins that nobody installed
        preload()


def smallest_session(ordinal: int) -> Any:
    """A session that loads all libraries, of a small model, which is not run: what cuDNN does then is nothing to be
    done beside others. Raises BuildError, DeviceError."""
    check_provider()
    model, provider = smallest(), {"device_id": str(ordinal), "arena_extend_strategy": "kSameAsRequested"}
    return open_on_gpu(to_bytes(model), runtime.session_settings(1), provider, model)


def open_on_gpu(content: bytes, settings: Any, options: Mapping[str, str], model: Model) -> Any:
    """A session that is really on the GPU: ONNX Runtime itself falls back to the CPU in silence."""
    load_libraries()
    providers = [(_PROVIDER, dict(options)), "CPUExecutionProvider"]
    session = runtime.open_session(content, settings, model, providers)
    session.disable_fallback()  # else a run that fails is done again on the CPU, with tensors of the GPU
    if _PROVIDER not in session.get_providers():
        raise BuildError(
            "ONNX Runtime could not start its CUDA provider",
            why=f"the CUDA and cuDNN that version {runtime.ort().__version__} was built for are missing or too old",
            where=str(model.path),
            fix="pip install nvidia-cudnn-cu12 or -cu13, as onnxruntime.ai lists for this version; or install cuDNN 9",
        )
    return session


class OrtCudaEngine(runtime.OrtEngine):
    """See :class:`~edgert.backend.gpu.GpuEngine`. All sessions put their work on one stream, and share the weights.

    The sizes of all outputs must follow from the profile's shapes.

    Args:
        fused: for :meth:`refine`.
        full: the session that runs all rows of the first profile, and its stream; the same as others by default.

    Attributes:
        nbytes: of the GPU's memory, that opening it and its first run took.
        refinement: the latest of :meth:`refine`; None where there was nothing to do.
        refinements: all of them.
    """

    def __init__(
        self,
        session: Any,
        profiles: Mapping[str, base.Shapes],
        path: str,
        info: Mapping[str, Any],
        device: CudaDevice,
        stream: Stream,
        fused: Fused | None = None,
        full: tuple[Any, Stream] | None = None,
    ) -> None:
        self.device, self.stream, self._guard = device, stream, threading.RLock()
        self._sessions: list[OrtCudaSession] = []
        self._full, self._retired = full, list[Any]()
        self._streams = [full[1]] if full else []  # longer than the sessions that work on them
        self._known: dict[str, _OutputShapes] = {profile: {} for profile in profiles}
        super().__init__(session, profiles, path, info)
        self._sessions.pop().close()  # it showed the shapes
        self.outputs_known = True
        self.refinement: Refinement | None = None
        self._fused, self.nbytes = fused, 0
        self.refinements = list[Refinement]()

    def session(self, profile: str | None = None, on_host: OnHost = "all", lane: int = 0) -> OrtCudaSession:
        """A new set of bound tensors. All are of one lane: a session of ONNX Runtime has one stream."""
        shapes, first = self.shapes_of(profile), self.profiles[0]
        made = OrtCudaSession(
            self.open_session(),
            shapes,
            self.path,
            self.device,
            self.stream,
            self._guard,
            on_host,
            full=self._full if profile in (None, first) else None,
            known=self._known[profile or first],
        )
        self._sessions.append(made)
        return made

    def refine(
        self, sizes: Sequence[int] = (), record: Callable[[int], object] = bool, profile: str | None = None
    ) -> Refinement | None:
        """Prepares what takes long in a thread of its own, while full batches run, as CUDA graphs. First runs of fewer
        rows; then full batches are compiled with fused kernels, where these are wanted, and what was recorded of them
        before is among the ``renewed`` of a session. Fused kernels that are not asked for and not faster are dropped;
        that, and what stands in the way, is logged, and all goes on as it was.

        Args:
            sizes: numbers of rows that nobody runs before ``record`` was called with them. Then a run of so many can be
                recorded, in that call; nobody else records meanwhile, and nobody may run any that is not recorded.
            profile: that has these.

        Returns:
            the thread; None where there is nothing to do.
        """
        fused, self._fused = self._fused, None  # and with it the model
        if not sizes and fused is None:
            return None
        made = partial(self._refine, sizes, record, profile, fused)
        self.refinement = Refinement(made, "fused kernels for full batches", self.path, runtime.ort().RunOptions())
        self.refinements.append(self.refinement)
        return self.refinement

    def _refine(
        self,
        sizes: Sequence[int],
        record: Callable[[int], object],
        profile: str | None,
        fused: Fused | None,
        options: Any,
    ) -> str:
        try:
            self._prepare(sizes, record, profile, options)
        except (BuildError, DeviceError) as error:
            if not options.terminate:
                log.warning("%s: some batches are run as larger ones: %s (%s)", self.path, error.what, error.why)
        if fused is None or options.terminate:
            return f"batches of {', '.join(map(str, sizes))} are prepared"
        with turn(options, fused.after_s) as is_mine:
            if not is_mine:
                return "closed before fused kernels were compiled"
            why = fused.why_not(self.device, self.nbytes)
            became = f"no fused kernels for full batches: {why}" if why else self._with(fused, options)
        self.info = {**self.info, "fused": became}
        return became

    def _prepare(
        self, sizes: Sequence[int], record: Callable[[int], object], profile: str | None, options: Any
    ) -> None:
        """Plans runs of each of the sizes, over tensors of their own, and has them recorded before the next is
        planned: a session has the plans of one size, and makes them anew whenever that changes."""
        if not sizes:
            return
        with closing(self._trial(profile, options)) as trial:
            for rows in sizes:
                for tries_left in (1, 0):  # another thread, or a library in this one, may come between once
                    if options.terminate:
                        return
                    try:
                        with self.device.recording:
                            for _ in range(2):  # the second as the first has shown how much memory it takes
                                trial.enqueue(rows)
                            self.stream.synchronize()
                            for one in self._sessions:
                                if one.shapes == trial.shapes:
                                    one.bind(rows)
                            record(rows)
                        break
                    except (BuildError, DeviceError):
                        if not tries_left or options.terminate:
                            raise
                        with suppress(BuildError):  # CUDA reports it a second time, to whoever asks next in this thread
                            trial.enqueue(rows)

    def _trial(
        self, profile: str | None, options: Any = None, full: tuple[Any, Stream] | None = None
    ) -> OrtCudaSession:
        """A set of tensors beside those that are used. Its runs are on the engine's stream, and hold up nobody."""
        first = self.profiles[0]
        return OrtCudaSession(
            self.open_session(),
            self.shapes_of(profile),
            self.path,
            self.device,
            self.stream,
            threading.RLock(),
            "none",
            options,
            full=full or (self._full if profile in (None, first) else None),
            known=self._known[profile or first],
        )

    def _with(self, fused: Fused, options: Any) -> str:
        """Compiles them, and takes them where they are wanted; what became of that."""
        free, own, found = self.device.free_bytes()[0], self.device.stream(), fused.known()
        self._streams.append(own)
        session = fused.open(own)
        self._compile(session, own, fused, options)
        if found is None and not fused.is_asked:
            found = self._compared(session, own)
            fused.cache(found)
        if found is not None and not found.pays and not fused.is_asked:
            with self.device.recording:  # as when it was opened
                del session
            return f"no fused kernels for full batches: measured: {found}"
        with self._guard:
            self._retired.append(self._full)  # what was recorded of it is used until it is recorded anew
            self._full = session, own
            for one in self._sessions:
                if one.shapes == {tensor.name: tensor.shape for tensor in self.inputs}:
                    one.run_full_by(session, own)
        parts = str(found or ""), f"{format_bytes(max(free - self.device.free_bytes()[0], 0))} more"
        return f"fused kernels for full batches, {', '.join(filter(None, parts))}"

    def _compile(self, session: Any, own: Stream, fused: Fused, options: Any) -> None:
        """Runs it once. Where that cannot be, it is cached, so that later starts do not try."""
        shapes, guard = self.shapes_of(None), threading.RLock()
        try:
            OrtCudaSession(session, shapes, self.path, self.device, own, guard, "none", options).close()
        except BuildError as error:
            if not options.terminate and "captur" not in error.why:  # what another thread records ends
                fused.cache(Compared(1.0, math.inf))
            raise

    def _compared(self, session: Any, own: Stream) -> Compared:
        """How fast full batches are without it, and with it; as they are run, as CUDA graphs where that can be."""
        with closing(self._trial(None)) as first, closing(self._trial(None, full=(session, own))) as second:
            graphs = []
            for one in (first, second):
                with self.device.recording, self._guard:  # in this order, as all who record
                    graphs.append(layout.recorded(one)[0])
            if graphs[0] and not graphs[1]:
                return Compared(1.0, math.inf)
            runs = [graph or one.enqueue for graph, one in zip(graphs, (first, second), strict=True)]
            found = least_us(self.device, self.stream, self._guard, runs)
            graphs.clear()
            runs.clear()
            return found

    def close(self) -> None:
        """Drops ONNX Runtime's sessions and the memory of all of ours, once the GPU is done."""
        for one in self.refinements:
            one.close()
        self.refinements.clear()
        self.refinement = self._fused = self._full = None
        self._retired.clear()
        for session in self._sessions:
            session.close()
        self._sessions.clear()
        super().close()


_OutputShapes = dict[int, list[tuple[int, ...]]]
"""Of all outputs, by the number of rows; filled by the first session that runs so many."""


class OrtCudaSession(runtime.OrtSession):
    """See :class:`~edgert.backend.gpu.GpuSession`.

    Args:
        first: run options of what takes long, its first run of a number of rows.
        full: another session that runs all rows, and its stream.
        known: shapes of outputs that need not be found out.

    Attributes:
        renewed: numbers of rows whose runs have become faster since they were recorded.
        shapes: of the inputs.
    """

    def __init__(
        self,
        session: Any,
        shapes: base.Shapes,
        path: str,
        device: CudaDevice,
        stream: Stream,
        guard: threading.RLock,
        on_host: OnHost = "all",
        first: Any = None,
        full: tuple[Any, Stream] | None = None,
        known: _OutputShapes | None = None,
    ) -> None:
        self.device, self.stream, self.exclusive, self.recordable = device, stream, guard, True
        self._on_host, self._first, self._full = on_host, first, full
        self._known: _OutputShapes = {} if known is None else known
        self.renewed: set[int] = set()
        self.inputs_on_gpu: dict[str, GpuTensor] = {}
        self.outputs_on_gpu: tuple[GpuTensor, ...] = ()
        self._enqueued: dict[int, Callable[[], None]] = {}
        self._settings = runtime.ort().RunOptions()
        self._settings.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self._runs = {}
        try:
            super().__init__(session, shapes, path)
            self.shapes = {name: tensor.shape for name, tensor in self.inputs_on_gpu.items()}
            self.enqueue(self.rows)  # allocates the outputs, whose shapes a first run shows, and what a run takes
            self.stream.synchronize()
        except BaseException:
            self.close()
            raise

    @property
    def streams(self) -> list[Stream]:
        """All that its work is put on."""
        return [self.stream] if self._full is None else [self.stream, self._full[1]]

    def enqueue(self, rows: int | None = None) -> None:
        """See :meth:`edgert.backend.gpu.GpuSession.enqueue`. Raises DeviceError, too, for too little memory."""
        count = self._count(rows)
        try:
            with self.exclusive:
                self.bind(count)
                self._enqueued[count]()
        except runtime.ort_errors() as error:
            raise self._failed(error) from error

    def bind(self, rows: int) -> None:
        """Binds a number of rows; they are run where the shapes of their outputs are not known yet."""
        with self.exclusive:
            if rows not in self._enqueued:
                self._runs[rows] = self._bind(rows)

    def run_full_by(self, session: Any, own: Stream) -> None:
        """Has another ONNX Runtime session, on a stream of its own, run all rows from now on."""
        self._full = session, own
        self._enqueued[self.rows] = self._bound(self.rows, [tensor.shape for tensor in self.outputs_on_gpu])
        self.renewed.add(self.rows)

    def close(self) -> None:
        """Frees the tensors, once the GPU is done with them. Twice is once."""
        self._enqueued.clear()
        self._full = None
        self._runs.clear()
        tensors = [*self.inputs_on_gpu.values(), *self.outputs_on_gpu]
        self.inputs_on_gpu, self.outputs_on_gpu = {}, ()
        if tensors:
            self.device.settle()
        for tensor in tensors:
            tensor.block.release()

    def _bind(self, rows: int) -> Callable[[], Sequence[base.Array]]:
        """Binds the first ``rows`` rows; what it returns runs from host memory to host memory."""
        if rows not in self._known:
            with self.exclusive:
                zeros = {name: np.zeros(shape, one.dtype) for (name, one), shape in self._of_rows(rows)}
                found = self._session_of(rows).run(None, zeros, self._first)
            self._known[rows] = [array.shape for array in found]
        shapes = self._known[rows]
        if not self.outputs_on_gpu:
            for_host, arguments = self._on_host != "none", self._session.get_outputs()
            for arg, shape in zip(arguments, shapes, strict=True):  # each at once, for where the next finds no room
                self.outputs_on_gpu += (self._tensor(arg, shape, "output", for_host),)
        self._enqueued[rows] = self._bound(rows, shapes)
        lengths = [shape[0] if shape else None for shape in shapes]

        def run() -> Sequence[base.Array]:
            for tensor in self.inputs_on_gpu.values():
                tensor.block.upload(self.stream)
            self.enqueue(rows)
            for tensor in self.outputs_on_gpu:
                tensor.block.download(self.stream)
            self.stream.synchronize()
            pairs = zip(self.outputs_on_gpu, lengths, strict=True)
            return [tensor.host if length is None else tensor.host[:length] for tensor, length in pairs]

        return run

    def _bound(self, rows: int, outputs: Sequence[tuple[int, ...]]) -> Callable[[], None]:
        """What puts a run of so many rows on the stream."""
        session = self._session_of(rows)
        binding = session.io_binding()
        for (_, tensor), shape in self._of_rows(rows):
            self._place(binding.bind_input, tensor, shape)
        for tensor, shape in zip(self.outputs_on_gpu, outputs, strict=True):
            self._place(binding.bind_output, tensor, shape)
        if session is self._session:
            return partial(session.run_with_iobinding, binding, self._settings)
        assert self._full is not None
        return partial(OwnRun(session, binding, self.device, self._full[1]).enqueue, self.stream, self._settings)

    def _session_of(self, rows: int) -> Any:
        """ONNX Runtime's session that runs so many."""
        return self._session if self._full is None or rows < self.rows else self._full[0]

    def _of_rows(self, rows: int) -> list[tuple[tuple[str, GpuTensor], tuple[int, ...]]]:
        """Inputs, and their shapes for so many rows."""
        items, some = self.inputs_on_gpu.items(), rows < self.rows
        return [(item, (rows, *item[1].shape[1:]) if some and item[1].shape else item[1].shape) for item in items]

    def _bound_inputs(self, arguments: Sequence[Any], shapes: base.Shapes) -> Mapping[str, base.Array]:
        for arg in arguments:
            shape = base.static_shape(arg.name, shapes.get(arg.name) or arg.shape, self._path)
            self.inputs_on_gpu[arg.name] = self._tensor(arg, shape, "input", self._on_host == "all")
        return HostSides(self.inputs_on_gpu)

    def _row_count(self) -> int:
        return base.row_count(self.inputs_on_gpu.values())

    def _tensor(self, arg: Any, shape: tuple[int, ...], role: str, for_host: bool) -> GpuTensor:
        dtype = runtime.dtype_of(arg, f"{role} {arg.name!r}", self._path)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        return GpuTensor(arg.name, tuple(shape), dtype, self.device.tensor_block(max(nbytes, 1), for_host=for_host))

    def _place(self, bind: Any, tensor: GpuTensor, shape: tuple[int, ...]) -> None:
        dtype = np.dtype(tensor.dtype).type
        bind(tensor.name, "cuda", self.device.ordinal, dtype, shape, tensor.block.address)

    def _failed(self, error: Exception) -> EdgertError:
        if is_out_of_memory(error):
            return DeviceError("the GPU has too little memory", why=runtime.first_line(error), where=self._path)
        if is_lost(str(error)):
            return failed(error, "running the model").at(self._path)
        return super()._failed(error)


def is_out_of_memory(error: Exception) -> bool:
    """Whether it is the GPU's memory that was too small, by ONNX Runtime's words or CUDA's."""
    text = str(error).lower()
    return any(part in text for part in ("out of memory", "failed to allocate memory", "cuda failure 2:", "too little"))
