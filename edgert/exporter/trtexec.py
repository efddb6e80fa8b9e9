"""``build.sh``: the ``trtexec`` commands that build the same engines as a board.

The options follow trtexec's source for each release: ``samples/common/sampleOptions.cpp`` and ``sampleEngines.cpp`` on
the branches release/8.6, 10.3, 10.7, 10.13, 10.16 and 11.1 of
https://github.com/NVIDIA/TensorRT.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from edgert._version import __version__
from edgert.backend.base import EngineOptions
from edgert.backend.tensorrt import dialects, trt_backend
from edgert.backend.tensorrt.build_request import GPU, BuildRequest, Format
from edgert.backend.tensorrt.library import Library, library_of, release_of
from edgert.compiler.build_target import model_of
from edgert.compiler.engine_specs import engine_specs
from edgert.compiler.model_forms import FLOAT
from edgert.config.engine_choice import TENSORRT, TENSORRT_DLA
from edgert.errors import BuildError
from edgert.exporter.source import Item
from edgert.graph import Model, TensorSpec, inputs, load, outputs
from edgert.quantization.scheme.trt_scheme import can_be_named, layer_precisions

_MAX_ARGUMENT_BYTES = 131_071
"""Size of the longest argument on Linux, MAX_ARG_STRLEN without the final zero: ``man 2 execve``."""
_LAYOUTS = {"LINEAR": "chw"}
"""Layouts whose trtexec name is not TensorRT's name in lower case."""
_NEW_LAYOUTS = {"HWC16": 11}
_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8", "int32": "int32"}
_NEW_DTYPES = {"int64": "int64", "bool": "bool", "uint8": "uint8"}
"""Types of TensorRT 10 and later."""
_POOLS = {
    "WORKSPACE": "workspace",
    "DLA_MANAGED_SRAM": "dlaSRAM",
    "DLA_LOCAL_DRAM": "dlaLocalDRAM",
    "DLA_GLOBAL_DRAM": "dlaGlobalDRAM",
}


@dataclass(frozen=True, slots=True)
class Command:
    """A command that builds an engine: arguments of ``trtexec``, and contents of the files they name, by path."""

    stem: str
    options: tuple[str, ...]
    members: Mapping[str, bytes]
    limitations: tuple[str, ...]


def command(request: BuildRequest, library: Library, stem: str, known: Mapping[str, bytes] | None = None) -> Command:
    """Return the command for one engine; equal members of ``known`` commands are reused.

    ``stem`` is the path of its files without the ending: ``parts/gpu`` for ``parts/gpu.onnx``. Raises BuildError where
    this TensorRT or its command line cannot express the request.
    """
    dialects.dialect_of(library).check(request)
    if request.compute:
        raise request.refusal(f"{library.title} builds for its own GPU only", f"asked for {', '.join(request.compute)}")
    builder = _CommandBuilder(
        request, model_of(request.model, Path(request.title)), release_of(library.version), stem, known or {}
    )
    options = tuple(builder.options())
    for option in options:
        if len(option.encode()) > _MAX_ARGUMENT_BYTES:
            name = option.partition("=")[0]
            raise request.refusal(
                f"{name} would have {len(option.encode())} bytes",
                f"an argument has at most {_MAX_ARGUMENT_BYTES} on Linux",
                "place the complete model on one accelerator (placement: gpu or dla0), or build it with edgert",
            )
    return Command(stem, options, builder.members, tuple(builder.limitations))


@dataclass
class _CommandBuilder:
    """Builds the options of one command."""

    request: BuildRequest
    model: Model
    release: tuple[int, int]
    stem: str
    known: Mapping[str, bytes]
    members: dict[str, bytes] = field(default_factory=dict)
    limitations: list[str] = field(default_factory=list)

    def options(self) -> Iterator[str]:
        """Yield all options in the order in which edgert sets them."""
        ports = inputs(self.model), outputs(self.model)
        yield f"--onnx={self._file('.onnx', self.request.model)}"
        yield f"--saveEngine={self.stem}.plan"
        yield "--skipInference"
        yield "--profilingVerbosity=detailed"
        yield f"--exportLayerInfo={self.stem}.layers.json"
        if self.release[0] < 10 and self.request.version_compatible:
            yield "--nativeInstanceNorm"  # the default from 10 on
        if self.release[0] >= 11 and self.request.dla_core is not None:
            yield from ("--adjustForDLA", *(["--reportCapabilityDLA"] if self.request.all_on_dla else []))
        yield from self._formats(ports)
        yield from self._shapes(ports[0])
        yield from self._switches()
        # the engines of a folder share a cache, which trtexec creates and extends
        cache = f"{''.join(self.stem.rpartition('/')[:2])}timing.cache"
        if self.request.timing_cache:
            self.members[cache] = self.request.timing_cache
        yield f"--timingCacheFile={cache}"
        if self.release[0] < 11:
            yield from self._precision()
        yield from self._placement()

    def _file(self, ending: str, content: bytes) -> str:
        same = (name for name, other in self.known.items() if other == content)
        name = next(same, f"{self.stem}{ending}")
        self.members[name] = content
        return name

    def _formats(self, ports: tuple[Sequence[TensorSpec], Sequence[TensorSpec]]) -> Iterator[str]:
        """Yield the formats of all tensors in the model's order, as trtexec does not accept incomplete lists."""
        known = {spec.name for specs in ports for spec in specs}
        for name in self.request.formats:
            if name not in known:
                raise self.request.refusal(f"no input or output {name!r}", "a format names it")
        for option, specs in zip(("--inputIOFormats", "--outputIOFormats"), ports, strict=True):
            if any(spec.name in self.request.formats for spec in specs):
                yield f"{option}={','.join(self._format(spec) for spec in specs)}"

    def _format(self, spec: TensorSpec) -> str:
        form = self.request.formats.get(spec.name, Format("LINEAR"))
        dtypes = _DTYPES | (_NEW_DTYPES if self.release[0] >= 10 else {})
        dtype = form.dtype or spec.dtype
        if dtype not in dtypes or self.release[0] < _NEW_LAYOUTS.get(form.layout, 0):
            raise self.request.refusal(
                f"trtexec of TensorRT {self.release[0]}.{self.release[1]} cannot make tensor {spec.name!r} "
                f"{dtype} in {form.layout}",
                "it has no option for this format",
                "leave the format out, or build the model with edgert",
            )
        return f"{dtypes[dtype]}:{_LAYOUTS.get(form.layout, form.layout.lower())}"

    def _shapes(self, specs: Sequence[TensorSpec]) -> Iterator[str]:
        """Yield shapes of inputs with open dimensions only, as trtexec does not accept shapes for a static model."""
        fixed = {spec.name for spec in specs if spec.is_static}
        self._check_open([spec for spec in specs if spec.name not in fixed])
        profiles = [
            {name: span for name, span in profile.items() if name not in fixed} for profile in self.request.profiles
        ]
        profiles = [profile for profile in profiles if profile]
        if len(profiles) > 1 and self.release[0] < 10:
            self.limitations.append(
                f"{len(profiles) - 1} of {len(profiles)} optimization profiles: trtexec has had --profile since 10.0"
            )
            profiles = profiles[:1]
        for number, profile in enumerate(profiles):
            if len(profiles) > 1:
                yield f"--profile={number}"
            for option, which in (("--minShapes", "least"), ("--optShapes", "usual"), ("--maxShapes", "most")):
                shapes = {name: "x".join(map(str, getattr(span, which))) for name, span in profile.items()}
                texts = (f"{self._quoted_name(name)}:{shape or 'scalar'}" for name, shape in shapes.items())
                yield f"{option}={','.join(texts)}"

    def _check_open(self, specs: Sequence[TensorSpec]) -> None:
        """Raise BuildError for open dimensions without a shape, which trtexec would set to 1 with a warning."""
        for spec in specs:
            if not self.request.profiles or any(spec.name not in profile for profile in self.request.profiles):
                raise self.request.refusal(
                    f"input {spec.name!r} has open dimensions: {spec}",
                    "no profile gives shapes for it",
                    "use a pipeline with input: {shape: …}, or export the model with fixed sizes",
                )

    def _quoted_name(self, name: str) -> str:
        if can_be_named(name):
            return name
        raise self.request.refusal(
            f"input {name!r} cannot be named on trtexec's command line",
            "commas, single quotes and stars have a meaning there",
            "rename it in the model",
        )

    def _switches(self) -> Iterator[str]:
        request = self.request
        sizes = {name: f"{size / 2**20:.9f}" for name, size in request.pools.named_limits()}  # in MiB, no exponent
        if sizes:
            pools = (f"{_POOLS[name]}:{text.rstrip('0').rstrip('.')}" for name, text in sizes.items())
            yield f"--memPoolSize={','.join(pools)}"
        if request.optimization_level is not None:
            yield f"--builderOptimizationLevel={request.optimization_level}"
        if request.version_compatible:
            yield "--versionCompatible"
        if request.sparse:
            yield "--sparsity=enable"

    def _precision(self) -> Iterator[str]:
        """Yield the precision as in :class:`~edgert.backend.tensorrt.dialects.WeakDialect`, before TensorRT 11."""
        request = self.request
        if request.precision != "fp32" or request.dla_core is not None:
            yield "--fp16"
        if request.precision == "int8":
            yield "--int8"
        if request.calibration:
            yield f"--calib={self._file('.cache', request.calibration.encode())}"
        if not request.fp16_nodes:
            return
        named = self._nameable(request.fp16_nodes, "in float16")
        if named:
            yield "--precisionConstraints=prefer"
            yield f"--layerPrecisions={layer_precisions(named)}"
        self.limitations.append(
            "if a node becomes several layers, only the one with its name stays in float16; edgert keeps all"
        )

    def _placement(self) -> Iterator[str]:
        """Yield the placement. Layers are on the DLA by default in trtexec, but on the GPU in edgert."""
        request = self.request
        core = request.dla_core
        if core is None:
            return
        yield f"--useDLACore={core}"
        yield "--allowGPUFallback"
        if self.release[0] < 11 and not request.fp16_nodes:
            self.limitations.append(
                "with --useDLACore, trtexec always sets PREFER_PRECISION_CONSTRAINTS; edgert does so only for "
                "nodes that stay in float16"
            )
        if request.all_on_dla:
            return
        placed = [name for name in request.nodes if request.placement.get(name, GPU) != GPU]
        named = self._nameable(placed, "on the DLA")
        # a full name takes precedence over the star
        pairs = ["*:GPU", *(layer_precisions([name], "DLA") for name in named)]
        yield f"--layerDeviceTypes={','.join(pairs)}"
        self.limitations.append(
            "if a node becomes several layers, only the one with its name is put on the DLA; edgert puts all"
        )

    def _nameable(self, names: Iterable[str], where: str) -> list[str]:
        """Return the parser's names of nodes, without names that the command line cannot express."""
        names_in_graph = {node.name for node in self.model.proto.graph.node}
        # The parser names a node without a name after its first output: edgert.backend.tensorrt.network.
        in_parser = [name if name in names_in_graph else f"node_of_{self.request.nodes[name][0]}" for name in names]
        lost = [name for name in in_parser if not can_be_named(name)]
        self.limitations += [f"layer {name!r} {where}: trtexec would split its name" for name in lost]
        return [name for name in in_parser if can_be_named(name)]


# ``build.sh`` with a command for each engine, quoted for any shell.


def engine_commands(item: Item, tensorrt: str) -> list[Command]:
    """Return a command for each engine that a board would build of a model, in descending order of their frames."""
    library = library_named(tensorrt)
    commands: list[Command] = []
    places: list[str] = []
    if item.packed is None:
        requests = [trt_backend.static_request(load(item.forms[FLOAT]), EngineOptions(), title=str(Path(item.where)))]
    else:
        engine = TENSORRT_DLA if item.uses_dla else TENSORRT
        requests = [spec.request for spec in engine_specs(item.packed, engine, library)]
    for request in requests:
        place = GPU if request.dla_core is None else f"dla{request.dla_core}"
        places.append(place)
        number = places.count(place)
        stem = f"{item.name}/{place}{f'-{number}' if number > 1 else ''}"
        known = {name: content for one in commands for name, content in one.members.items()}
        commands.append(command(request, library, stem, known))
    return commands


def dispatch_shares(item: Item) -> tuple[str, ...]:
    """Return the frame shares of several engines, which build commands cannot express."""
    if len(item.engines) < 2:
        return ()
    shares = ", ".join(f"{'+'.join(one.accelerators)} {one.share:.0%}" for one in item.engines)
    return (f"frames are shared among its engines: {shares}",)


def library_named(tensorrt: str) -> Library:
    """Return a release, which need not be installed. Raises BuildError for one that edgert does not support."""
    try:
        return library_of(SimpleNamespace(__version__=tensorrt, __name__="tensorrt"))
    except BuildError as error:
        error.fix = "use --format onnx, which its own trtexec reads"
        raise


_HEAD = """\
#!/bin/sh
# Builds {engines} with trtexec of TensorRT {tensorrt}. Written by edgert {version}.
# Another release may read these options differently, or not at all.
{limitations}set -eu
cd "$(dirname "$0")"
trtexec=${{TRTEXEC:-$(command -v trtexec || echo /usr/src/tensorrt/bin/trtexec)}}
"""


def build_script(commands: Sequence[Command], tensorrt: str, limitations: Sequence[str]) -> str:
    """Return the script's text. ``tensorrt`` may come from an untrusted bundle."""
    release = " ".join(tensorrt.split())  # a line break would end the comment
    engines = "one engine" if len(commands) == 1 else f"{len(commands)} engines"
    lines = [f"#   - {' '.join(line.split())}\n" for line in limitations]
    comments = "".join(["#\n# Not expressed below, because trtexec has no option for it:\n", *lines] if lines else [])
    head = _HEAD.format(engines=engines, tensorrt=release, version=__version__, limitations=comments)
    options = [" \\\n  ".join(map(shlex.quote, command.options)) for command in commands]
    return "\n".join([head, *(f'"$trtexec" \\\n  {text}\n' for text in options)])
