"""Sections of a board file, in which every number has a source and a confidence; ``null`` means unknown."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from edgert import limits, units
from edgert.config.fields import Section
from edgert.errors import ConfigError, nearest

Precision = Literal["fp32", "fp16", "int8"]
Confidence = Literal["high", "medium", "low"]
"""Confidence in a number.

``high`` means that it is in the maker's own file or data sheet, or that independent sources agree. ``medium`` means
that it is in one table, or in a copy that could not be compared. ``low`` means that it is derived or assumed."""

Count = Annotated[int, Field(ge=0, le=limits.WHOLE_NUMBER)]
Some = Annotated[int, Field(ge=1, le=limits.WHOLE_NUMBER)]
Mhz = Annotated[float, Field(ge=1, le=1e5)]  # without limits, times become infinite
Rate = Annotated[float, Field(ge=1, le=1e9)]
Text = Annotated[str, Field(min_length=1)]
Words = Annotated[tuple[Text, ...], Field(min_length=1, strict=False)]  # YAML has lists only
Numbers = Annotated[tuple[int, ...], Field(min_length=1, strict=False)]
Bytes = Annotated[int, BeforeValidator(units.parse_bytes), Field(gt=0, le=limits.WHOLE_NUMBER)]


def _bytes_or_unknown(value: object) -> int | None:
    return None if value is None else units.parse_bytes(value)


class Part(Section, strict=True):
    """Base of the mappings of a board file, which accept no values of other types."""


class Origin(Part):
    """Source of single numbers of a section, where it differs from the section's: an address, or who measured them."""

    of: Words
    source: Text
    confidence: Confidence
    note: str = ""


class Sourced(Part):
    """Base of sections with numbers and their source; ``origins`` has those of single numbers that differ."""

    source: Text
    confidence: Confidence
    notes: str = ""
    origins: Annotated[tuple[Origin, ...], Field(strict=False)] = ()

    def origin(self, key: str) -> Origin:
        """Return source and confidence of one number of this section."""
        own = (origin for origin in self.origins if key in origin.of)
        return next(own, Origin(of=(key,), source=self.source, confidence=self.confidence))


class Variant(Part):
    """Module that uses the file of a similar module.

    ``word`` is its part number, as in the device tree's ``compatible``; ``note`` has the differences.
    """

    word: Text
    name: Text
    note: Text
    source: Text


class Match(Sourced):
    """Identifiers by which a running system is recognized as this board.

    One of ``compatible`` is in the device tree's. ``super`` is faster firmware, whose device tree has ``-super``.
    ``variants`` are other modules that use this file.
    """

    compatible: Words
    super: bool
    variants: Annotated[tuple[Variant, ...], Field(strict=False)] = ()

    @property
    def words(self) -> frozenset[str]:
        """All words by which the board or a variant is recognized."""
        return frozenset((*self.compatible, *(variant.word for variant in self.variants)))


class Memory(Sourced):
    """DRAM that CPU, GPU and DLA share; the memory controller makes two transfers per clock.

    ``usable_bytes`` is managed by the kernel, without firmware and carve-outs, and differs slightly between releases.
    """

    bytes: Bytes
    usable_bytes: Annotated[Annotated[int, Field(gt=0)] | None, BeforeValidator(_bytes_or_unknown)] = None
    type: Text
    bus_bits: Some
    emc_max_mhz: Mhz

    @field_validator("usable_bytes")
    @classmethod
    def _within(cls, usable_bytes: int | None, info: ValidationInfo) -> int | None:
        if usable_bytes is not None and usable_bytes > info.data.get("bytes", usable_bytes):
            raise ValueError("it cannot exceed bytes")
        return usable_bytes

    @property
    def most_bytes(self) -> int:
        """Maximum memory for programs."""
        return self.usable_bytes or self.bytes


class GpuRates(Part):
    """Dense operations of one SM per clock, where a multiply-add is two; None without a fast path or if unknown."""

    fp32: Rate
    fp16: Rate | None
    int8: Rate | None


class Gpu(Sourced):
    """GPU with all SMs on; ``ops_per_clock`` is of one SM, ``sparse_speedup`` for weights with 2 zeros in 4."""

    architecture: Text
    compute: Annotated[str, Field(pattern=r"^\d+\.\d$")]
    sms: Some
    cuda_cores: Some
    tensor_cores: Count
    max_mhz: Mhz | None
    ops_per_clock: GpuRates
    sparse_speedup: Some = 1


class Cpu(Sourced):
    """CPU of the board with all cores on; ``max_mhz`` is None if unknown."""

    model: Text
    cores: Some
    max_mhz: Mhz | None


class DlaRates(Part):
    """Dense operations of one core per clock, where a multiply-add is two; None if not published."""

    fp16: Rate | None
    int8: Rate | None


class Dla(Sourced):
    """Deep-learning accelerator; a board without one has only ``cores: 0`` and ``generation: null``.

    Attributes:
        generation: 1 for Xavier, 2 for Orin.
        sram_bytes: on-chip memory that TensorRT manages.
        sram_shared: whether all cores share this memory; otherwise each core has as much.
        ops_per_clock: operations of one core per clock.
        sparse_speedup: speedup for weights with 2 zeros in 4; 1 for none.
    """

    generation: Some | None
    cores: Count
    max_mhz: Mhz | None = None
    sram_bytes: Annotated[int | None, BeforeValidator(_bytes_or_unknown)] = None
    sram_shared: bool = False
    ops_per_clock: DlaRates = DlaRates(fp16=None, int8=None)
    sparse_speedup: Some = 1


class VideoEncoder(Sourced):
    """Video encoder (NVENC)."""

    engines: Count


class JetPack(Sourced):
    """Major releases of JetPack that support the board; ``no_edgert`` is why edgert itself runs on none of them."""

    majors: Numbers
    no_edgert: str = ""


class Advertised(Sourced):
    """Advertised INT8 TOPS of GPU and all DLA cores together, sparse where the chip supports it."""

    tops: Rate


Watts = Annotated[float, Field(ge=1e-3, le=1e5)]


class Idle(Sourced):
    """Reading of the idle module's power.

    Attributes:
        watts: power of the module.
        rail: rail, such as ``VDD_IN`` or ``VIN``, or rails that were added up.
        clocks: ``"up"`` if clocks were locked at their maximum or the GPU was on at its slowest, as while a pipeline
            runs; ``"down"`` if governors had lowered all clocks.
        modes: power modes for which it holds; empty for all.
    """

    watts: Watts
    rail: Text
    clocks: Literal["up", "down"] = "down"
    modes: Annotated[tuple[Text, ...], Field(strict=False)] = ()


class Mode(Sourced):
    """Power mode of ``nvpmodel``: units that are on, and their fastest clocks; None means unknown, except in ``watts``.

    Clocks are upper limits. The hardware runs at the next lower step of its table (``available_frequencies`` in sysfs),
    which differs a little between releases of JetPack.

    Attributes:
        name: name as ``nvpmodel -p`` prints it; modes are selected by name, because numbers differ between boards.
        watts: power of the module according to the mode's name; None for a mode without a limit, such as ``MAXN``.
        cpu_cores: number of cores that are on.
        cpu_mhz: fastest clock of the fastest core.
        sms: number of streaming multiprocessors that are on.
        gpu_mhz: fastest clock of the GPU.
        dla_cores: number of DLA cores that can be used.
        dla_mhz: fastest clock of the DLA cores; also None without a DLA.
        second_dla_mhz: fastest clock of the second core if it differs; otherwise None.
        emc_mhz: fastest clock of the memory controller.
        uncapped: clocks that the mode does not limit.
        estimated: keys whose values are not published but estimated by published ratios.
    """

    name: Text
    watts: Watts | None
    cpu_cores: Some | None
    cpu_mhz: Mhz | None
    sms: Some | None
    gpu_mhz: Mhz | None
    dla_cores: Count = 0
    dla_mhz: Mhz | None = None
    second_dla_mhz: Mhz | None = None
    emc_mhz: Mhz | None
    uncapped: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    estimated: Annotated[tuple[Text, ...], Field(strict=False)] = ()

    @property
    def unknown(self) -> tuple[str, ...]:
        """Keys that are not published and without which speed cannot be predicted."""
        keys = ("cpu_cores", "cpu_mhz", "sms", "gpu_mhz", "emc_mhz", *(("dla_mhz",) if self.dla_cores else ()))
        return tuple(key for key in keys if getattr(self, key) is None)

    def dla_clock_mhz(self, core: int = 0) -> float | None:
        """Return the fastest clock of a DLA core; None if it is unknown or there is no such core."""
        if core >= self.dla_cores:
            return None
        return self.second_dla_mhz if core and self.second_dla_mhz is not None else self.dla_mhz


_TRANSFERS = 2
"""Transfers of double data rate memory per clock of its controller (JEDEC JESD209)."""


class DefaultMode(Sourced):
    """Power mode into which a freshly installed system boots."""

    name: Text


class Board(Part):
    """Jetson module, or a user's own board; immutable.

    Its ``name`` is the value of ``board:`` and ``--board``, and the name of its file. Sections that are None or empty
    are unknown; without ``match``, no system is recognized as this board.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    title: Text
    soc: Text
    match: Match | None = None
    memory: Memory
    gpu: Gpu
    cpu: Cpu
    dla: Dla
    jetpack: JetPack
    encoder: VideoEncoder | None = None
    advertised: Advertised | None = None
    idle: Annotated[tuple[Idle, ...], Field(strict=False)] = ()
    modes: Annotated[tuple[Mode, ...], Field(min_length=1, strict=False)]
    default_mode: DefaultMode | None = None

    @property
    def without_edgert(self) -> str:
        """Statement that edgert itself cannot run on this board, with the reason; empty where it can."""
        why = self.jetpack.no_edgert
        return f"edgert itself does not run on a {self.title}: {why}" if why else ""

    def mode(self, name: str) -> Mode:
        """Return the power mode with a name, ignoring case and a prefix ``MODE_``. Raises ConfigError."""
        found = self._mode(name)
        if found is None:
            names = [mode.name for mode in self.modes]
            hint = nearest(name.upper(), names)
            raise ConfigError(f"{self.name} has no power mode {name!r}{hint}", fix=f"modes: {', '.join(names)}")
        return found

    def has_mode(self, name: str) -> bool:
        """Return whether :meth:`mode` finds this name."""
        return self._mode(name) is not None

    def _mode(self, name: str) -> Mode | None:
        wanted = bare_name(name)
        return next((mode for mode in self.modes if bare_name(mode.name) == wanted), None)

    @property
    def usual_mode(self) -> Mode:
        """Mode into which it boots; if unknown, the first mode with known clocks, or else the first."""
        if self.default_mode is not None:
            return self.mode(self.default_mode.name)
        return next((mode for mode in self.modes if not mode.unknown), self.modes[0])

    @property
    def peak_mode(self) -> Mode:
        """Mode with all units on at their fastest clocks, as advertised; ``nvpmodel`` may not have such a mode."""
        return Mode(
            name="peak",
            watts=None,
            cpu_cores=self.cpu.cores,
            cpu_mhz=self.cpu.max_mhz,
            sms=self.gpu.sms,
            gpu_mhz=self.gpu.max_mhz,
            dla_cores=self.dla.cores,
            dla_mhz=self.dla.max_mhz,
            emc_mhz=self.memory.emc_max_mhz,
            source="the maxima of this board's sections",
            confidence="low",
        )

    def idle_w(self, mode: Mode, clocks: Literal["up", "down"] | None = None) -> float | None:
        """Return the power of the idle module in a mode, as the mean of the readings; None if unknown.

        Without ``clocks`` it is the mean of both kinds of readings, because governors change clocks with the load.
        """
        if clocks is None:
            both = [found for found in (self.idle_w(mode, "down"), self.idle_w(mode, "up")) if found is not None]
            return sum(both) / len(both) if both else None
        lines = [line for line in self.idle if line.clocks == clocks]
        own = [line.watts for line in lines if mode.name in line.modes]
        every = own or [line.watts for line in lines if not line.modes]
        return sum(every) / len(every) if every else None

    # Peak speeds follow from clocks, units and bus, and no workload reaches them. None means that a clock or rate is
    # not published, or that the board lacks the unit.

    def bandwidth_gb_s(self, mode: Mode) -> float | None:
        """Return the DRAM bandwidth in 10⁹ bytes per second: clock × 2 transfers × width of the bus."""
        return None if mode.emc_mhz is None else mode.emc_mhz * _TRANSFERS * self.memory.bus_bits / 8 / 1000

    def gpu_tops(self, mode: Mode, precision: Precision) -> float | None:
        """Return dense 10¹² operations per second of active SMs; also None without a fast path for the precision."""
        rate = getattr(self.gpu.ops_per_clock, precision)
        if rate is None or mode.sms is None or mode.gpu_mhz is None:
            return None
        return float(rate * mode.sms * mode.gpu_mhz / 1e6)

    def dla_tops(self, mode: Mode, precision: Precision, core: int = 0) -> float | None:
        """Return dense 10¹² operations per second of a DLA core; also None for FP32 and for a missing core."""
        rate = getattr(self.dla.ops_per_clock, precision, None)
        clock_mhz = mode.dla_clock_mhz(core)
        return None if rate is None or clock_mhz is None else float(rate * clock_mhz / 1e6)


def bare_name(name: str) -> str:
    """Return the name of a mode by which modes are compared: in lower case, without the prefix of some boards."""
    return name.strip().lower().removeprefix("mode_")
