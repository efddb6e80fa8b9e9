"""Sections of a board file; every number has a source and a confidence beside it, and ``null`` is unknown."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from edgert import limits
from edgert.units import parse_bytes

Precision = Literal["fp32", "fp16", "int8"]
Confidence = Literal["high", "medium", "low"]
"""Degree of trust in a number.

``high``: in the maker's own file or data sheet, or several independent sources agree. ``medium``: in one table, or in a
copy that could not be compared. ``low``: derived from other numbers, or assumed."""

Count = Annotated[int, Field(ge=0, le=limits.WHOLE_NUMBER)]
Some = Annotated[int, Field(ge=1, le=limits.WHOLE_NUMBER)]
Mhz = Annotated[float, Field(ge=1, le=1e5)]  # without limits, times become infinite
Rate = Annotated[float, Field(ge=1, le=1e9)]
Text = Annotated[str, Field(min_length=1)]
Words = Annotated[tuple[Text, ...], Field(min_length=1, strict=False)]  # YAML has lists only
Numbers = Annotated[tuple[int, ...], Field(min_length=1, strict=False)]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0, le=limits.WHOLE_NUMBER)]


def _bytes_or_unknown(value: object) -> int | None:
    return None if value is None else parse_bytes(value)


class Part(BaseModel):
    """Base of the mappings of a board file: frozen; an unknown key, or a value of another type, is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)


class Origin(Part):
    """Source of single numbers of a section, where it differs from the section's.

    Attributes:
        of: keys of the section.
        source: an address, or who measured it and how.
        confidence: see :data:`Confidence`.
        note: what to know about it; may be empty.
    """

    of: Words
    source: Text
    confidence: Confidence
    note: str = ""


class Sourced(Part):
    """Base of sections with numbers.

    Attributes:
        source: of the numbers.
        confidence: in the numbers.
        notes: what to know about them; may be empty.
        origins: of numbers with another source.
    """

    source: Text
    confidence: Confidence
    notes: str = ""
    origins: Annotated[tuple[Origin, ...], Field(strict=False)] = ()

    def origin(self, key: str) -> Origin:
        """Return source and confidence of one number of this section."""
        own = (origin for origin in self.origins if key in origin.of)
        return next(own, Origin(of=(key,), source=self.source, confidence=self.confidence))


class Variant(Part):
    """A module that another one's file describes, because no better file exists.

    Attributes:
        word: its part number, as in the device tree's ``compatible``.
        name: its maker's name for it.
        note: what differs.
        source: of these facts.
    """

    word: Text
    name: Text
    note: Text
    source: Text


class Match(Sourced):
    """Identifiers by which a running system is recognized as this board.

    Attributes:
        compatible: part numbers and names, one of which is in the device tree's ``compatible``.
        super: whether the firmware is the faster one, whose device tree has ``-super``.
        variants: other modules that use this board's file.
    """

    compatible: Words
    super: bool
    variants: Annotated[tuple[Variant, ...], Field(strict=False)] = ()

    @property
    def words(self) -> frozenset[str]:
        """All words that the board is recognized by, those of its variants included."""
        return frozenset((*self.compatible, *(variant.word for variant in self.variants)))


class Memory(Sourced):
    """DRAM that CPU, GPU and DLA share.

    Attributes:
        bytes: size of the chips.
        usable_bytes: what the kernel manages, without the reserves of firmware and carve-outs; it differs a little from
            release to release. None: unknown.
        type: such as ``LPDDR5``.
        bus_bits: width of its bus.
        emc_max_mhz: fastest clock of its controller; two transfers of ``bus_bits`` in each.
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
        """Most memory for programs."""
        return self.usable_bytes or self.bytes


class GpuRates(Part):
    """Dense operations of one SM per clock; a multiplication and an addition are two.

    None: no such fast path, or unknown.
    """

    fp32: Rate
    fp16: Rate | None
    int8: Rate | None


class Gpu(Sourced):
    """The GPU.

    Attributes:
        compute: CUDA's compute capability.
        sms: streaming multiprocessors with none gated off.
        cuda_cores: of all of them.
        tensor_cores: of all of them.
        max_mhz: fastest clock; None where it is unknown.
        ops_per_clock: of one SM.
        sparse_speedup: factor for weights with 2 zeros in 4; 1 without such a speedup.
    """

    architecture: Text
    compute: Annotated[str, Field(pattern=r"^\d+\.\d$")]
    sms: Some
    cuda_cores: Some
    tensor_cores: Count
    max_mhz: Mhz | None
    ops_per_clock: GpuRates
    sparse_speedup: Some = 1


class Cpu(Sourced):
    """The CPU with all cores on; ``max_mhz`` is None where it is unknown."""

    model: Text
    cores: Some
    max_mhz: Mhz | None


class DlaRates(Part):
    """Dense operations of one core per clock; a multiplication and an addition are two; None: not published."""

    fp16: Rate | None
    int8: Rate | None


class Dla(Sourced):
    """The deep-learning accelerator; a board without one has ``cores: 0`` and ``generation: null`` only.

    Attributes:
        generation: 1 is Xavier's, 2 is Orin's; None without cores.
        cores: number of cores.
        max_mhz: fastest clock.
        sram_bytes: fast memory on the chip that TensorRT manages.
        sram_shared: whether all cores share it; otherwise each has so much.
        ops_per_clock: of one core.
        sparse_speedup: factor for weights with 2 zeros in 4; 1 without such a speedup.
    """

    generation: Some | None
    cores: Count
    max_mhz: Mhz | None = None
    sram_bytes: Annotated[int | None, BeforeValidator(_bytes_or_unknown)] = None
    sram_shared: bool = False
    ops_per_clock: DlaRates = DlaRates(fp16=None, int8=None)
    sparse_speedup: Some = 1


class VideoEncoder(Sourced):
    """The block that encodes video (NVENC)."""

    engines: Count


class JetPack(Sourced):
    """Major releases of JetPack that support the board.

    Attributes:
        no_edgert: why edgert itself runs under none of them; empty where it does.
    """

    majors: Numbers
    no_edgert: str = ""


class Advertised(Sourced):
    """Number on the box, ``tops``: INT8, GPU and all DLA cores together, sparse where the chip supports it."""

    tops: Rate


Watts = Annotated[float, Field(ge=1e-3, le=1e5)]


class Idle(Sourced):
    """Watts that were read while nothing ran, on one power rail or several that together are the module.

    Attributes:
        watts: the reading.
        rail: what was read: ``VDD_IN``, ``VIN``, or the rails that were added up.
        clocks: ``"up"`` where they were locked at their maximum or the GPU was on at its slowest, as while a pipeline
            runs; ``"down"`` where governors had lowered everything.
        modes: power modes it holds for; empty: all.
    """

    watts: Watts
    rail: Text
    clocks: Literal["up", "down"] = "down"
    modes: Annotated[tuple[Text, ...], Field(strict=False)] = ()


# Power modes of a board, as ``nvpmodel`` sets them.


class Mode(Sourced):
    """A power mode: the units that are on, and their fastest clocks; None is unknown, except in ``watts``.

    Clocks are upper limits. The hardware runs at the next lower step of its table (``available_frequencies`` in sysfs),
    which differs a little between releases of JetPack.

    Attributes:
        name: as ``nvpmodel -p`` prints it. Modes are selected by name: their numbers differ from board to board.
        watts: what the module may draw, by the mode's name; None for a mode without a limit, such as ``MAXN``.
        cpu_cores: cores that are on.
        cpu_mhz: fastest clock of the fastest of them.
        sms: streaming multiprocessors of the GPU that are on.
        gpu_mhz: fastest clock of the GPU.
        dla_cores: cores of the DLA that can be used.
        dla_mhz: their fastest clock; None where there is no DLA, too.
        second_dla_mhz: that of the second core, where it has a limit of its own; None where it has not.
        emc_mhz: fastest clock of the memory controller.
        uncapped: clocks, of those above, that the mode leaves at the board's maximum.
        estimated: keys, of those above, that nobody has published: their values follow from published ratios.
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
        """Return the fastest clock of one DLA core; None where it is unknown or there is no such core."""
        if core >= self.dla_cores:
            return None
        return self.second_dla_mhz if core and self.second_dla_mhz is not None else self.dla_mhz
