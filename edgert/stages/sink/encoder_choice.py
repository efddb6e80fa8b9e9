"""The choice of a video's encoder: by this machine's hardware, and by where its images are."""

from dataclasses import dataclass, field
from typing import Literal

from edgert.board import detect
from edgert.errors import BuildError, DeviceError
from edgert.memory.cuda import CudaDevice
from edgert.runtime.records import Result
from edgert.stages.sink import encoders, gst_encoder, nvenc
from edgert.stages.source import nvdec

EncodeMode = Literal["auto", "cpu", "gpu"]
NO_GPU = nvenc.NO_GPU
NO_JETSON = "this is no Jetson"
NOT_ON_THIS_JETSON = "of all Jetsons, only Thor can use NVENC in this way"
_NEVER_HERE = NO_GPU, NO_JETSON, NOT_ON_THIS_JETSON
"""Reasons that are not worth a log line."""


def hardware_encoders(codec: encoders.Codec, *, on_gpu: bool, ordinal: int = 0) -> list[tuple[encoders.Kind, str]]:
    """Return the hardware encoders of a machine, best first, each with the reason not to try it; empty for none.

    FFmpeg's NVENC is for machines without PyNvVideoCodec, because it only takes images on the host.

    ``on_gpu`` is whether the images are on a GPU, and ``ordinal`` its number.
    """
    machine = detect()
    board, own = machine.board, gst_encoder.missing(codec) if machine.is_jetson else NO_JETSON
    package = ffmpeg = NOT_ON_THIS_JETSON
    if board is not None and board.encoder is not None and not board.encoder.engines:
        own = package = ffmpeg = f"a {board.title} has no video encoder"
    elif machine.has_desktop_nvdec:
        package = nvenc.missing(codec, ordinal)
        is_about_gpu = bool(nvenc.driver_missing()) or not nvdec.missing()  # not about the package
        ffmpeg = package if is_about_gpu else ""
        if not ffmpeg and not encoders.has_encoder(encoders.NVENC[codec]):
            ffmpeg = f"PyAV has no {encoders.NVENC[codec]}"
    kinds: list[tuple[encoders.Kind, str]] = [("nvenc", package), ("ffmpeg", ffmpeg)]
    if on_gpu and own != NO_JETSON:
        kinds.append(("board, on the GPU", own))
    return kinds if own == NO_JETSON else [*kinds, ("board", own)]


@dataclass(slots=True)
class EncoderChoice:
    """Chooser of the encoders of one sink. The first choice and each change are logged.

    Args:
        stall_s: seconds without input or output after which an encoder has failed.
        live: whether the video is watched while it is made.
    """

    where: str
    codec: encoders.Codec
    encode: EncodeMode
    stall_s: float = 5.0
    live: bool = False
    _refused: dict[encoders.Kind, str] = field(default_factory=dict)
    _cpu: str = ""
    _last_line: str = ""

    def check(self) -> None:
        """Raise DeviceError if it is known before the first image that nothing can encode."""
        if self.encode != "gpu":
            self._cpu = encoders.cpu_encoder_name(self.codec, self.where, self.live)
        elif all(reasons := [why for _, why in hardware_encoders(self.codec, on_gpu=True)]):
            raise self._no_hardware_encoder(reasons)

    def open(self, result: Result, format: encoders.VideoFormat) -> encoders.Encoder:
        """Return the best encoder that opens, for a video that begins with a result. Raises DeviceError."""
        encoder, reasons = self._open_best(result, format)
        reasons = [reason for reason in dict.fromkeys(reasons) if reason not in _NEVER_HERE]
        line = f"encoded by {encoder.title}" + (f": {'; '.join(reasons)}" if reasons else "")
        if line != self._last_line and (reasons or encoder.kind != "cpu"):
            self._last_line = line
            encoders.log.info("%s: %s", self.where, line)
        return encoder

    def _open_best(self, result: Result, format: encoders.VideoFormat) -> tuple[encoders.Encoder, list[str]]:
        """Return the best encoder that opens, and why better ones do not. Raises DeviceError."""
        device = encoders.image_gpu(result)
        reasons = list[str]()
        if self.encode != "cpu":
            ordinal = device.ordinal if device else 0
            for kind, why in hardware_encoders(self.codec, on_gpu=device is not None, ordinal=ordinal):
                reason = why or self._refused.get(kind, "")
                if not reason:
                    try:
                        return self._make(kind, format, device, result), reasons
                    except (DeviceError, BuildError) as error:
                        reason = f"{error.what}: {error.why}" if error.why else error.what
                reasons.append(reason)
        if self.encode == "gpu":
            raise self._no_hardware_encoder(reasons)
        return encoders.FfmpegEncoder(self._cpu, format), reasons

    def refuse(self, kind: encoders.Kind, reason: str) -> None:
        """Exclude a kind of encoder that failed while running: later streams use the next kind."""
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

    def _no_hardware_encoder(self, reasons: list[str]) -> DeviceError:
        what = f"{self.codec.upper().replace('H', 'H.')} cannot be encoded by hardware here"
        why = "; ".join(dict.fromkeys(reasons))
        return DeviceError(what, why=why, where=self.where, fix="encode: auto, or encode: cpu")
