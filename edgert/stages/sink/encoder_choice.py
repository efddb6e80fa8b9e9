"""The choice of a video's encoder, by this machine's hardware and the place of its images."""

from dataclasses import dataclass, field
from typing import Literal

from edgert.board import detect
from edgert.errors import BuildError, DeviceError
from edgert.memory.cuda import CudaDevice
from edgert.runtime.records import Result
from edgert.stages.sink import encoders, gst_encoder, nvenc
from edgert.stages.source import nvdec

Where = Literal["auto", "cpu", "gpu"]
NO_GPU = nvenc.NO_GPU
NO_JETSON = "this is no Jetson"
NOT_ON_THIS_JETSON = "of Jetsons, only a Thor's NVENC is reached so"
_NEVER_HERE = NO_GPU, NO_JETSON, NOT_ON_THIS_JETSON


@dataclass(frozen=True, slots=True)
class HardwareEncoders:
    """Why each encoder of a machine cannot be used, and what to do; empty where it can.

    Attributes:
        board: a Jetson's own, through GStreamer.
        nvenc: NVENC through PyNvVideoCodec.
        ffmpeg: NVENC through FFmpeg.
    """

    board: str = NO_JETSON
    nvenc: str = NO_GPU
    ffmpeg: str = NO_GPU


def hardware_encoders(codec: encoders.Codec, ordinal: int = 0) -> HardwareEncoders:
    """Return this machine's encoders for a codec. ``ordinal`` is the GPU that would encode."""
    machine = detect()
    board = machine.board
    if board is not None and board.encoder is not None and not board.encoder.engines:
        return HardwareEncoders(*[f"a {board.title} has no video encoder"] * 3)
    own = gst_encoder.missing(codec) if machine.is_jetson else NO_JETSON
    if not machine.has_desktop_nvdec:
        return HardwareEncoders(own, NOT_ON_THIS_JETSON, NOT_ON_THIS_JETSON)
    package = nvenc.missing(codec, ordinal)
    lacks = "" if encoders.has_encoder(encoders.NVENC[codec]) else f"this PyAV has no {encoders.NVENC[codec]}"
    known = package if nvenc.driver_missing() or not nvdec.missing() else ""  # of the GPU, not of the package
    return HardwareEncoders(own, package, known or lacks)


def ranked(on_gpu: bool, found: HardwareEncoders) -> list[tuple[encoders.Kind, str]]:
    """Return the hardware encoders, best first, each with why it is not tried; empty where it is.

    FFmpeg's NVENC is for machines without PyNvVideoCodec: it takes images of the host only.
    """
    kinds: list[tuple[encoders.Kind, str]] = [("nvenc", found.nvenc), ("ffmpeg", found.ffmpeg)]
    if found.board != NO_JETSON:
        board: list[tuple[encoders.Kind, str]] = [("board", found.board)]
        kinds += [("board, on the GPU", found.board), *board] if on_gpu else board
    return kinds


@dataclass(slots=True)
class Choice:
    """The encoders of one sink. What is chosen is logged when it is chosen first, and when it changes.

    Args:
        where: the sink's stage, for messages.
        encode: as in the pipeline file.
        stall_s: after how long an encoder that takes or gives nothing has failed.
        live: whether the video is watched while it is made.
    """

    where: str
    codec: encoders.Codec
    encode: Where
    stall_s: float = 5.0
    live: bool = False
    _refused: dict[encoders.Kind, str] = field(default_factory=dict)
    _cpu: str = ""
    _said: str = ""

    def check(self) -> None:
        """Raise DeviceError where nothing can encode, as far as is known before the first image."""
        if self.encode != "gpu":
            self._cpu = encoders.cpu_encoder(self.codec, self.where, self.live)
        elif all(reasons := [why for _, why in ranked(True, hardware_encoders(self.codec))]):
            raise self._failed(reasons)

    def open(self, result: Result, format: encoders.VideoFormat) -> encoders.Encoder:
        """Return the best encoder that opens, for a video that begins with this result. Raises DeviceError."""
        device = encoders.gpu_of(result)
        reasons = list[str]()
        if self.encode != "cpu":
            for kind, why in ranked(device is not None, hardware_encoders(self.codec, device.ordinal if device else 0)):
                reason = why or self._refused.get(kind, "")
                if not reason:
                    try:
                        return self._chosen(self._make(kind, format, device, result), reasons)
                    except (DeviceError, BuildError) as error:
                        reason = f"{error.what}: {error.why}" if error.why else error.what
                reasons.append(reason)
        if self.encode == "gpu":
            raise self._failed(reasons)
        return self._chosen(encoders.FfmpegEncoder(self._cpu, format), reasons)

    def refuse(self, kind: encoders.Kind, reason: str) -> None:
        """Record that an encoder failed while running: streams that begin from now on use the next kind."""
        self._refused[kind] = reason

    def _make(
        self, kind: encoders.Kind, format: encoders.VideoFormat, device: CudaDevice | None, result: Result
    ) -> encoders.Encoder:
        if kind == "ffmpeg":
            return encoders.FfmpegEncoder(encoders.NVENC[format.codec], format)
        drawn = result.image is not None
        if kind == "nvenc":
            return nvenc.Nvenc(format, device, drawn)
        gpu = device if kind == "board, on the GPU" else None
        return gst_encoder.GstEncoder(format, gpu, self.where, self.stall_s, drawn)

    def _chosen(self, encoder: encoders.Encoder, reasons: list[str]) -> encoders.Encoder:
        worth_saying = [reason for reason in dict.fromkeys(reasons) if reason not in _NEVER_HERE]
        why = f": {'; '.join(worth_saying)}" if worth_saying else ""
        what = f"encoded by {encoder.title}{why}"
        if what != self._said and (worth_saying or encoder.kind != "cpu"):
            self._said = what
            encoders.log.info("%s: %s", self.where, what)
        return encoder

    def _failed(self, reasons: list[str]) -> DeviceError:
        what = f"{self.codec.upper().replace('H', 'H.')} cannot be encoded by hardware here"
        why = "; ".join(dict.fromkeys(reasons))
        return DeviceError(what, why=why, where=self.where, fix="encode: auto, or encode: cpu")
