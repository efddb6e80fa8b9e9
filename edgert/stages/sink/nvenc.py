"""NVENC through PyNvVideoCodec, for images on the GPU or on the host.

API: https://docs.nvidia.com/video-technologies/pynvvideocodec/pynvc-api-reference/encoder.html. Version 2.2 or newer is
needed, whose units have the times of their images. This has not run on a machine with NVENC.
"""

import ctypes
import re
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from edgert.errors import DeviceError
from edgert.memory.cuda import Block, CudaDevice
from edgert.memory.cuda.driver import load_driver
from edgert.runtime.records import Result
from edgert.stages.sink.encoders import KEYFRAME_EVERY, Codec, I420Writer, Kind, Unit, VideoFormat
from edgert.stages.sink.gpu_images import GpuImages
from edgert.stages.source import nvdec

NAMES: dict[Codec, str] = {"h264": "h264", "h265": "hevc"}
NO_GPU = "no NVIDIA GPU here"
_LIBRARY = "libnvidia-encode.so.1"
_IDR = 3  # NV_ENC_PIC_TYPE_IDR of nvEncodeAPI.h
_BUFFERS = 4  # as in NVIDIA's samples, which reuse a buffer when the encoder has copied it


def driver_missing() -> str:
    """Return why the driver offers no NVENC; empty when it may."""
    try:
        load_driver()
    except DeviceError:
        return NO_GPU
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return f"the driver has no {_LIBRARY}: in a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"
    return ""


def missing(codec: Codec, ordinal: int) -> str:
    """Return why PyNvVideoCodec cannot encode on this GPU, and what to do; empty when it can."""
    return driver_missing() or nvdec.missing() or _unsupported(codec, ordinal)


@lru_cache(maxsize=8)
def _unsupported(codec: Codec, ordinal: int) -> str:
    module = nvdec.nvdec()
    try:
        caps = module.GetEncoderCaps(gpuid=ordinal, codec=NAMES[codec])
    except _nvenc_errors(module) as error:
        return f"GPU {ordinal} has no NVENC for {codec}: {_one_line(error)}"
    return "" if caps.get("num_encoder_engines", 1) else f"GPU {ordinal} has no NVENC"


class Nvenc:
    """NVENC encoder of host or GPU images, with a constant quantizer.

    Raises:
        DeviceError: NVENC does not support the format, has no free session (GeForce cards have few), or the package is
            too old.
    """

    kind: Kind = "nvenc"
    title = "NVENC (PyNvVideoCodec)"

    def __init__(self, format: VideoFormat, device: CudaDevice | None, drawn: bool = False) -> None:
        self._module, self._format, self.raw = nvdec.nvdec(), format, NAMES[format.codec]
        self._i420, self._blocks, self._count = I420Writer(), list[Block](), 0
        self._on_gpu = GpuImages(device, drawn) if device is not None else None
        options: dict[str, object] = {"gpu_id": device.ordinal if device else 0}
        if device is not None and self._on_gpu is not None:
            options.update(cudacontext=device.context_handle, cudastream=self._on_gpu.stream.handle)
            nbytes = format.width * format.height * 3 // 2
            self._blocks = [device.device_block(nbytes) for _ in range(_BUFFERS)]
        try:
            self._encoder: Any = self._call(
                self._module.CreateEncoder,
                format.width,
                format.height,
                "YUV420" if device is None else "NV12",
                device is None,
                codec=self.raw,
                bf=0,
                fps=round(format.rate or 30),
                **(_live_options(format) if format.bitrate_bps else _FILE_OPTIONS | {"constqp": format.quality}),
                **options,
            )
        except DeviceError:
            self.close()
            raise

    def encode(self, result: Result, tick: int) -> list[Unit]:
        """Encode like every encoder. Raises DeviceError."""
        parameters = self._module.NV_ENC_PIC_PARAMS()
        parameters.inputTimeStamp = tick
        image: object
        if self._on_gpu is None:
            image = self._i420.write(result).reshape(-1)
        else:
            image = _Nv12(self._blocks[self._count % _BUFFERS].address, self._format)
            self._on_gpu.write(result, image.planes)
        self._count += 1
        return self._units(self._call(self._encoder.Encode, image, parameters))

    def refresh(self) -> None:
        """Do nothing: key frames come every second, and PyNvVideoCodec documents no way to request one."""

    def finish(self) -> list[Unit]:
        """Finish like every encoder. Raises DeviceError."""
        return self._units(self._call(self._encoder.EndEncode))

    def close(self) -> None:
        """End the session, and free GPU memory."""
        self._encoder = None
        self._i420.close()
        if self._on_gpu is not None:
            self._on_gpu.close()
        while self._blocks:
            self._blocks.pop().release()

    def _units(self, encoded: list[Any]) -> list[Unit]:
        if not all(isinstance(one, dict) for one in encoded):
            why, fix = "its encoded images have no times", "pip install 'PyNvVideoCodec>=2.2'"
            raise DeviceError("PyNvVideoCodec is too old to encode", why=why, fix=fix)
        return [Unit(bytes(one["data"]), int(one["timestamp"]), int(one["picture_type"]) == _IDR) for one in encoded]

    def _call(self, function: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except _nvenc_errors(self._module) as error:
            what = f"NVENC cannot encode {self._format.width}x{self._format.height} {self._format.codec}"
            raise DeviceError(what, why=_one_line(error), fix="encode: cpu") from error


_FILE_OPTIONS = {"preset": "P4", "tuning_info": "high_quality", "rc": "constqp", "gop": KEYFRAME_EVERY}


def _live_options(format: VideoFormat) -> dict[str, object]:
    rate, bitrate = {"rc": "cbr", "bitrate": format.bitrate_bps}, {"maxbitrate": format.bitrate_bps}
    return {"preset": "P3", "tuning_info": "ultra_low_latency", "gop": round(format.rate or 30), **rate, **bitrate}


class _Nv12:
    """An NV12 image in the form that PyNvVideoCodec reads: ``cuda()`` returns its planes."""

    def __init__(self, address: int, format: VideoFormat) -> None:
        width, height = format.width, format.height
        self.planes = (address, width), (address + width * height, width)
        self._shapes = (height, width, 1), (height // 2, width // 2, 2)

    def cuda(self) -> list[Any]:
        return [_plane(address, shape) for (address, _), shape in zip(self.planes, self._shapes, strict=True)]


def _plane(address: int, shape: tuple[int, int, int]) -> SimpleNamespace:
    """Return a plane of an image, by CUDA's array interface."""
    about = {"version": 3, "shape": shape, "strides": (shape[1] * shape[2], shape[2], 1), "typestr": "|u1"}
    return SimpleNamespace(__cuda_array_interface__={**about, "data": (address, False)})


def _nvenc_errors(module: Any) -> tuple[type[Exception], ...]:
    return module.PyNvVCException, module.PyNvVCExceptionUnsupported, RuntimeError, ValueError


def _one_line(error: Exception) -> str:
    """Return the reason of an error in one line, without the C++ arguments that PyNvVideoCodec's errors have."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    reason = next((line.partition(" : ")[2] for line in lines if line.startswith("Error Type : ")), lines[0])
    return re.sub(r"m_nvenc\.(\w+)\(.*\)", r"\1", reason).strip()
