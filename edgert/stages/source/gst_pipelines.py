"""GStreamer pipelines as text, for a Jetson's cameras, decoder and encoder.

Elements and properties are those of Jetson Linux's guide to accelerated GStreamer,
https://docs.nvidia.com/jetson/archives/r36.4/DeveloperGuide/SD/Multimedia/AcceleratedGstreamer.html. Every one that
gives images ends in pitch-linear NV12 in video memory (NVMM), which the GPU reads in place. Where frames are wanted on
the host, :func:`gst.with_appsink` adds the copy. None of these has run on a board.
"""

from collections.abc import Mapping
from fractions import Fraction

from edgert.config.stages import SourceStage

OUTPUT_BUFFERS = 10
"""Buffers of nvvidconv, 4 by default. Two wait in the appsink, one is in the reader, one waits for the pipeline, and
the GPU reads up to three. With fewer, frames are lost before the appsink and not counted."""
NVMM = "video/x-raw(memory:NVMM),format=NV12"
TO_NVMM = f"nvvidconv bl-output=false output-buffers={OUTPUT_BUFFERS} ! {NVMM}"
"""Last elements of a pipeline whose images the GPU reads in place. Kernels cannot read block-linear images."""
FLIPS = {"90": 3, "180": 2, "270": 1, "horizontal": 4, "vertical": 6}
"""``flip:`` → ``flip-method`` of nvvidconv, which counts quarter turns counterclockwise; ``flip:`` is clockwise."""
JETSON_DECODER = "nvv4l2decoder"


def csi(sensor: int, config: SourceStage) -> str:
    """Return the pipeline of a CSI camera, through its image processor.

    The sensor is set to ``size`` and ``fps``, which choose its mode where ``sensor_mode`` does not. ``flip: 90`` and
    ``270`` exchange the frames' sides. ``options`` are further properties of ``nvarguscamerasrc``.
    """
    mode = {} if config.sensor_mode is None else {"sensor-mode": config.sensor_mode}
    source = " ".join(["nvarguscamerasrc", *_properties({"sensor-id": sensor, **mode, **config.options})])
    requested = f"{NVMM}{_size(config.size)}{_rate(config.fps)}"
    if config.flip is None:
        return f"{source} ! {requested} ! {TO_NVMM}"
    turned = config.size[::-1] if config.size and config.flip in ("90", "270") else config.size
    flip = TO_NVMM.replace(" ! ", f" flip-method={FLIPS[config.flip]} ! ", 1)
    return f"{source} ! {requested} ! {flip}{_size(turned)}"


def usb(path: str, config: SourceStage) -> str:
    """Return the pipeline of a V4L2 camera that gives compressed images; ``format`` is a key of :data:`USB_CODECS`."""
    caps, decoder = USB_CODECS[(config.format or "").lower()]
    requested = f"{caps}{_size(config.size)}{_rate(config.fps)}"
    return f"v4l2src device={_quoted(path)} io-mode=2 ! {requested} ! {decoder} ! {TO_NVMM}"


PARSERS = {"h264": "h264parse", "hevc": "h265parse"}
USB_CODECS = {
    "mjpeg": ("image/jpeg", f"jpegparse ! {JETSON_DECODER} mjpeg=1"),
    "h264": ("video/x-h264", f"{PARSERS['h264']} ! {JETSON_DECODER}"),
}
"""``format`` of a camera → GStreamer's caps and decoder."""


def packets(codec: str, source: str, decoder: str, end: str = TO_NVMM) -> str:
    """Return the pipeline for compressed video that edgert feeds into the ``appsrc`` named ``source``."""
    caps = f"video/x-{codec.replace('hevc', 'h265')},stream-format=byte-stream,alignment=au"
    put = f'appsrc name={source} format=time block=true max-bytes=4194304 caps="{caps}"'
    return f"{put} ! {decoder} ! {end}"


ENCODERS = {"h264": "nvv4l2h264enc", "h265": "nvv4l2h265enc"}
ENCODER = "encoder"
"""Name of the encoder element in its pipeline."""
_BASELINE, _HIGH = 0, 4
"""H.264 profiles. Files use High, as x264 does; the element's default, Baseline, needs more bits."""


def encoding(
    codec: str,
    encoder: str,
    names: tuple[str, str],
    size: tuple[int, int],
    fps: float | None,
    quality: int,
    keyframe_every: int,
    nvmm: bool,
    bps: int = 0,
) -> str:
    """Return the pipeline that encodes images from an ``appsrc`` and gives access units to an ``appsink``.

    For files, all images have one quantizer, which the element accepts with ``ratecontrol-enable=0 preset-level=0``.
    With ``bps`` the bit rate is constant. There are no B frames, every key frame has parameter sets, and the encoder
    runs at its highest clock, as in jetson-utils. ``names`` are those of the appsrc and the appsink. A varying frame
    rate is None, and means 30.
    """
    live = {"name": ENCODER, "control-rate": 1, "bitrate": bps, "preset-level": 1}
    file = {
        "ratecontrol-enable": 0,
        "preset-level": 0,
        **dict.fromkeys((f"quant-{kind}-frames" for kind in "ipb"), quality),
    }
    video = f"{NVMM if nvmm else 'video/x-raw,format=I420'}{_size(size)}{_rate(fps or 30)}"
    own = {
        **(live if bps else file),
        "iframeinterval": keyframe_every,
        "idrinterval": keyframe_every,
        **({"profile": _BASELINE if bps else _HIGH} if codec == "h264" else {}),
        "insert-sps-pps": 1,
        "maxperf-enable": 1,
    }
    steps = [
        f'appsrc name={names[0]} format=time caps="{video}"',
        *([] if nvmm or encoder not in ENCODERS.values() else ["nvvidconv", NVMM]),
        " ".join([encoder, *(_properties(own) if encoder in ENCODERS.values() else ())]),
        f"video/x-{codec},stream-format=byte-stream,alignment=au",
        f"appsink name={names[1]} sync=false",
    ]
    return " ! ".join(steps)


def _properties(named: Mapping[str, object]) -> list[str]:
    return [
        f"{name}={_quoted(str(value).lower() if isinstance(value, bool) else value)}" for name, value in named.items()
    ]


def _quoted(value: object) -> str:
    """Quote a value for gst-launch-1.0 where it needs that, such as the spaces of ``exposuretimerange``."""
    text = str(value)
    if text and all(letter.isalnum() or letter in "._-/" for letter in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _size(size: tuple[int, int] | None) -> str:
    return f",width={size[0]},height={size[1]}" if size else ""


def _rate(fps: float | None) -> str:
    """Return the caps of a frame rate; 29.97 becomes 30000/1001, as cameras write it."""
    if fps is None:
        return ""
    exact, ntsc = Fraction(fps), Fraction(round(fps) * 1000, 1001)
    rate = ntsc if round(fps) and abs(ntsc - exact) < Fraction(1, 200) else exact.limit_denominator(1000)
    return f",framerate={rate.numerator}/{rate.denominator}"
