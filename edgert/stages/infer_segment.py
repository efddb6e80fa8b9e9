"""One segment of a model as a stage, and stages that stay on one core."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgert.board.host import pin, unpin
from edgert.placement.segment_engines import Chain
from edgert.runtime import Result, Stage
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoder import Array, Decoder
from edgert.stages.preprocess import Preprocessor


@dataclass(frozen=True, slots=True)
class Handover:
    """What a segment passes to the next in place of a record: where the frame's tensors are, and the way back to it."""

    slot: int
    geometry: Geometry


class InferSegment:
    """One segment of a split model. The first fills the input, the last turns the outputs into a record.

    While frame n is in the next segment, this one works on frame n + 1, in another slot of the chain.

    Args:
        name: of the stage in the pipeline file, under which the record is kept.
        chain: shared by the segments of one inference slot.
        number: of the segment.
    """

    def __init__(self, name: str, chain: Chain, number: int) -> None:
        self.name, self._chain, self._number = name, chain, number

    def open(self) -> None:
        """Runs every slot once, so that the first frames do not pay for lazy set-up."""
        for slot in range(self._chain.slots):
            self._chain.run(self._number, slot)

    def process(self, result: Result) -> Result:
        """See :class:`~edgert.runtime.Stage`; frames that the first segment left out pass."""
        handover = result.outputs.get(self.name)
        if isinstance(handover, Handover):
            self._chain.run(self._number, handover.slot)
        return result

    def close(self) -> None:
        """The engine belongs to the pipeline."""


class FirstSegment(InferSegment):
    """The segment that takes frames, every ``every``-th of a stream.

    Args:
        preprocessors: one per slot, or one for all where they share the input.
    """

    def __init__(self, name: str, chain: Chain, preprocessors: Sequence[Preprocessor], every: int = 1) -> None:
        super().__init__(name, chain, 0)
        self._preprocessors, self._every, self._turn = preprocessors, every, 0

    def process(self, result: Result) -> Result:
        """See :class:`~edgert.runtime.Stage`."""
        if result.frame.index % self._every:
            return result
        slot = self._turn
        self._turn = (slot + 1) % self._chain.slots
        geometry = self._preprocessors[slot % len(self._preprocessors)].into(0, result.frame)
        self._chain.run(0, slot)
        return result.with_output(self.name, Handover(slot, geometry))


class LastSegment(InferSegment):
    """The segment whose outputs become the record, in the place of the handover."""

    def __init__(self, name: str, chain: Chain, decoder: Decoder, batched: Sequence[bool]) -> None:
        super().__init__(name, chain, chain.segments - 1)
        self._decoder, self._batched = decoder, tuple(batched)

    def process(self, result: Result) -> Result:
        """See :class:`~edgert.runtime.Stage`."""
        handover = result.outputs.get(self.name)
        if not isinstance(handover, Handover):
            return result
        self._chain.run(self._number, handover.slot)
        record = self._decoder(self._image(handover.slot), handover.geometry)
        return result.with_output(self.name, record)

    def _image(self, slot: int) -> list[Array]:
        outputs = self._chain.outputs(slot)
        return [array[0] if batched else array for array, batched in zip(outputs, self._batched, strict=True)]


class Pinned:
    """A stage whose thread stays on one core from its opening to its closing."""

    def __init__(self, stage: Stage, core: int) -> None:
        self._stage, self._core = stage, core
        self._before: frozenset[int] = frozenset()

    def open(self) -> None:
        """Pins the thread, then opens the stage, so that what it allocates is that core's."""
        self._before = pin(self._core)
        self._stage.open()

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        """What the stage makes of it."""
        return self._stage.process(result)

    def close(self) -> None:
        """Closes the stage and gives the thread its cores back."""
        try:
            self._stage.close()
        finally:
            unpin(self._before)
