"""The sections under ``models:``: an ONNX file, its task, and its preprocessing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Discriminator, Field, Tag, model_validator

from edgert.config import fields
from edgert.config.engine_choice import PlacementConfig
from edgert.config.fields import KindIn
from edgert.config.stages import verb_tag
from edgert.kinds import BACKENDS, DECODERS


class ShapeConfig(fields.Section):
    """Sizes for a model with dynamic dimensions: one number, or [smallest, usual, largest].

    TensorRT on a GPU takes the complete range; every other engine uses the usual size.
    """

    N: fields.Extent | None = Field(default=None, description="images per run")
    H: fields.Extent | None = Field(default=None, description="height in pixels")
    W: fields.Extent | None = Field(default=None, description="width in pixels")

    @property
    def extents(self) -> Mapping[str, tuple[int, int, int]]:
        """Letter of each given dimension → smallest, usual and largest size."""
        written = {letter: getattr(self, letter) for letter in ("N", "H", "W")}
        return {letter: extent for letter, extent in written.items() if extent is not None}

    @property
    def is_open(self) -> bool:
        """Whether a dimension has more than one size."""
        return any(least != largest for least, _, largest in self.extents.values())


class InputConfig(fields.Section):
    """Conversion of an image into the model's input tensor."""

    resize: Literal["letterbox", "stretch", "center_crop", "none"] = Field(
        default="letterbox",
        description="letterbox keeps the aspect ratio and pads; stretch does not; center_crop cuts; none needs frames "
        "of the network's size",
    )
    anchor: Literal["center", "top_left"] = Field(default="center", description="position of the image in a letterbox")
    pad: int = Field(default=114, ge=0, le=255, description="gray level of the letterbox border")
    crop: float = Field(
        default=1.0, gt=0, le=1, description="center_crop: part of the short side to keep; 0.875 is 224 of 256"
    )
    interpolation: Literal["linear", "area", "nearest", "cubic"] = Field(
        default="linear", description="how images are scaled"
    )
    color: Literal["rgb", "bgr", "gray"] = Field(default="rgb", description="order of the channels")
    mean: fields.PerChannel = Field(
        default=(0.0,), description="subtracted, in gray levels 0-255; one value or one per channel"
    )
    std: fields.PerChannel = Field(
        default=(1.0,),
        description="divisor, in gray levels; one value or one per channel; for uint8 inputs use mean: 0, std: 1",
    )
    layout: Literal["auto", "nchw", "nhwc"] = Field(default="auto", description="auto reads it from the input's shape")
    size: fields.Size | None = Field(default=None, description="network size, for a model with open height and width")
    shape: ShapeConfig = Field(
        default=ShapeConfig(), description="sizes of dynamic dimensions: {H: [320, 480, 640], N: [1, 1, 4]}"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> InputConfig:
        if self.size is not None and (self.shape.H or self.shape.W):
            raise ValueError("size and shape both set height or width; write one of them")
        channels = 1 if self.color == "gray" else 3
        for name in ("mean", "std"):
            if len(getattr(self, name)) not in (1, channels):
                raise ValueError(f"{name} needs 1 or {channels} values for color: {self.color}")
        if 0 in self.std:
            raise ValueError("std is divided by and cannot be 0")
        return self


class _Task(fields.Section):
    labels: fields.LabelsPath | None = Field(
        default=None,
        description="text file with one class name per line, or a built-in list: coco, coco91, coco17, imagenet, voc, "
        "voc21, cityscapes; default: the names in the model file",
    )


class _DecoderTask(_Task):
    options: dict[str, Any] = Field(default_factory=dict, description="settings of this decoder")


class DetectTask(_DecoderTask):
    """Boxes."""

    live: ClassVar[tuple[str, ...]] = ("score", "iou", "limit")
    detect: Annotated[str, KindIn(DECODERS["detect"])] = Field(
        description="layout of the output; yolov8 reads v8, v9, v11, v12; yolov10 reads heads with their own NMS; detr "
        "reads RT-DETR, D-FINE, DEIM, RF-DETR"
    )
    score: fields.Fraction = Field(default=0.25, description="lowest score to report")
    iou: fields.Fraction = Field(
        default=0.45,
        description="overlap above which the weaker box of a class is dropped; with options: {agnostic: true}, of any "
        "class",
    )
    limit: int = Field(default=300, ge=1, description="maximum boxes per frame")


class ClassifyTask(_DecoderTask):
    """One label for the whole image."""

    live: ClassVar[tuple[str, ...]] = ("top",)
    classify: Annotated[str, KindIn(DECODERS["classify"])] = Field(
        description="meaning of the output; auto looks at the values"
    )
    top: int = Field(default=5, ge=1, description="number of classes to report")


class SegmentTask(_DecoderTask):
    """A class for every pixel."""

    live: ClassVar[tuple[str, ...]] = ("threshold",)
    segment: Annotated[str, KindIn(DECODERS["segment"])] = Field(
        description="argmax: the best of many classes; threshold: one map above a threshold"
    )
    threshold: fields.Fraction = Field(default=0.5, description="for segment: threshold")


class KeypointsTask(_DecoderTask):
    """Points of bodies or things."""

    live: ClassVar[tuple[str, ...]] = ("score", "iou", "limit")
    keypoints: Annotated[str, KindIn(DECODERS["keypoints"])] = Field(description="layout of the output")
    score: fields.Fraction = Field(default=0.25, description="lowest score to report")
    iou: fields.Fraction = Field(default=0.45, description="overlap above which the weaker of two bodies is dropped")
    limit: int = Field(default=100, ge=1, description="maximum bodies per frame")


class EmbedTask(_DecoderTask):
    """A vector to compare with others."""

    live: ClassVar[tuple[str, ...]] = ("threshold",)
    embed: Annotated[str, KindIn(DECODERS["embed"])] = Field(description="l2 scales the vector to length 1")
    match: fields.FilePath | None = Field(
        default=None,
        description="a [gallery](tasks.md#a-gallery), `.npz` or `.json`; its most similar vector names the result",
    )
    threshold: float = Field(default=0.5, ge=-1, le=1, description="lowest similarity (cosine) for a name")


class TextTask(_DecoderTask):
    """The text of a line."""

    text: Annotated[str, KindIn(DECODERS["text"])] = Field(
        description="layout of the output; labels are its dictionary, one character per line"
    )


class DepthTask(_DecoderTask):
    """The distance of every pixel."""

    depth: Annotated[str, KindIn(DECODERS["depth"])] = Field(
        description="metric: meters; inverse: greater is nearer; relative: greater is farther"
    )


class ImageTask(_DecoderTask):
    """An image, which sinks show."""

    image: Annotated[str, KindIn(DECODERS["image"])] = Field(
        description="range of the output: unit 0-1, byte 0-255, signed -1-1"
    )
    color: Literal["rgb", "bgr"] = Field(default="rgb", description="order of the output's channels")


class AnomalyTask(_DecoderTask):
    """Anomaly score of the whole image, and an anomaly map."""

    live: ClassVar[tuple[str, ...]] = ("threshold",)
    anomaly: Annotated[str, KindIn(DECODERS["anomaly"])] = Field(
        description="layout of the output: a map, and perhaps a score"
    )
    threshold: float = Field(default=0.5, description="score above which the image is unusual")


class PythonTask(_Task):
    """A decoder of your own."""

    python: str = Field(pattern=fields.CODE_NAME, description="module:function(outputs, geometry) -> record")
    args: dict[str, Any] = Field(default_factory=dict, description="further arguments of the function")


_AnyTask = (
    Annotated[DetectTask, Tag("<detect>")]
    | Annotated[ClassifyTask, Tag("<classify>")]
    | Annotated[SegmentTask, Tag("<segment>")]
    | Annotated[KeypointsTask, Tag("<keypoints>")]
    | Annotated[EmbedTask, Tag("<embed>")]
    | Annotated[TextTask, Tag("<text>")]
    | Annotated[DepthTask, Tag("<depth>")]
    | Annotated[ImageTask, Tag("<image>")]
    | Annotated[AnomalyTask, Tag("<anomaly>")]
    | Annotated[PythonTask, Tag("<python>")]
)
TASKS: Mapping[str, type[_Task]] = {tag.tag.strip("<>"): task for task, tag in map(get_args, get_args(_AnyTask))}
TASK_VERBS = tuple(TASKS)
TaskConfig = Annotated[_AnyTask, Discriminator(lambda data: verb_tag(data, TASK_VERBS))]


def verb_of(task: TaskConfig) -> str:
    """Return the verb of a task, such as ``detect``."""
    return next(verb for verb in TASK_VERBS if verb in type(task).model_fields)


def value_of(task: TaskConfig) -> str:
    """Return the value of a task's verb, such as ``yolox``."""
    return str(getattr(task, verb_of(task)))


class CalibrateConfig(fields.Section):
    """Images from which INT8 ranges are measured."""

    images: fields.ImagesPath = Field(description="typical images: a folder, a glob, a video, or python:module:name")
    method: Literal["minmax", "percentile", "entropy", "mse", "auto"] = Field(
        default="mse", description="how ranges are clipped"
    )
    limit: int = Field(default=256, ge=1, description="maximum number of images")
    early_stop: bool = Field(default=True, description="stop when more images no longer change the ranges")


class QuantizeConfig(fields.Section):
    """INT8 quantization settings besides the ranges."""

    equalize: bool = Field(default=False, description="equalize the channels of neighboring layers first")
    correct_bias: bool = Field(default=True, description="subtract the mean error of rounding from each bias")
    activation: Literal["affine", "unsigned", "symmetric"] = Field(
        default="affine",
        description="zero point on ONNX Runtime: affine fits the values, unsigned starts at zero, symmetric has "
        "TensorRT's numbers",
    )
    adaround: fields.Names = Field(
        default=(), description="layers whose weights are rounded by AdaRound; names or globs, '*' for all"
    )
    keep: fields.Names = Field(default=(), description="layers that stay in higher precision; names or globs")


class AccuracyConfig(fields.Section):
    """Largest accuracy loss allowed for reduced precision."""

    dataset: fields.FilePath = Field(description="labeled images")
    metric: Literal[
        "map50", "map", "mask_map", "mask_map50", "obb_map", "obb_map50", "oks_map", "oks_map50", "top1", "top5",
        "miou", "cosine", "cer", "exact", "abs_rel", "rmse", "delta1", "psnr", "ssim", "hota", "idf1",
    ] = Field(description="metric to compare by")  # fmt: skip
    max_drop: fields.Fraction = Field(description="largest accepted loss against FP32; 0.01 is one point")


class TuningConfig(fields.Section):
    """Options of ONNX Runtime. Results are the same, but for `tf32`. `edgert build --tune` finds what is fastest."""

    optimization: Literal["all", "extended", "basic", "none"] = Field(
        default="all",
        description="extended: without ONNX Runtime's own tensor layouts; basic: without its own operators too",
    )
    spinning: Literal["auto", "runs"] | bool = Field(
        default="auto",
        description="whether idle threads spin; runs: only within a run; auto: runs with a live source, false with "
        "`budgets.cpu`, else true",
    )
    arena: bool = Field(default=True, description="reuse the memory of one run for the next")
    shared_arena: bool = Field(default=False, description="share that memory among all models that set this")
    prepacking: bool = Field(
        default=True, description="keep a second copy of the weights, in the order that kernels read"
    )
    balance: bool = Field(default=False, description="split work into smaller pieces, for cores of different speed")
    parallel: bool = Field(default=False, description="run branches of the model at the same time")
    channels_last: bool = Field(default=True, description="GPU: NHWC kernels, where cuDNN has them")
    conv_search: Literal["heuristic", "exhaustive"] = Field(
        default="heuristic", description="GPU: choose convolutions by cuDNN's guess, or by a long search at every start"
    )
    tf32: bool = Field(default=True, description="GPU: multiply float32 with 10 bits of its fraction")


class TensorRtConfig(fields.Section):
    """Options of TensorRT's builder; missing ones have TensorRT's default."""

    workspace: fields.PositiveBytes | None = Field(
        default=None,
        description="maximum scratch memory of GPU layers; default on a board: half of what is free at compile time",
    )
    dla_sram: fields.DlaPool | None = Field(default=None, description="DLA: on-chip scratch memory, a power of two")
    dla_local: fields.DlaPool | None = Field(default=None, description="DLA: memory between layers, a power of two")
    dla_global: fields.DlaPool | None = Field(default=None, description="DLA: memory of weights, a power of two")
    optimization: int | None = Field(
        default=None, ge=0, le=5, description="how long kernels are searched for: 0 builds fastest, 5 slowest"
    )
    version_compatible: bool = Field(
        default=False, description="later versions of TensorRT can run the engine, which may be slower"
    )
    sparse: bool = Field(
        default=False, description="sparse kernels, for weights trained with two zeros in every four input channels"
    )


class ModelConfig(fields.Section):
    """One model and how to use it."""

    onnx: fields.FilePath = Field(description="the ONNX file")
    task: TaskConfig = Field(description="what the outputs mean")
    input: InputConfig = Field(default=InputConfig(), description="how images are prepared")
    profiles: dict[fields.Name, dict[str, tuple[int, ...]]] = Field(
        default_factory=dict,
        description="named shapes for a model with dynamic dimensions: {small: {x: [1,3,320,320]}}",
    )
    backend: Annotated[str, KindIn(BACKENDS)] = Field(
        default="auto", description="engine for this model, whatever engines: lists; null runs nothing"
    )
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads of the engine; default: its share of the cores"
    )
    replicas: int | None = Field(
        default=None,
        ge=1,
        description="frames it works on at a time, which share the threads; default: one per thread for files, one for "
        "cameras and crops",
    )
    priority: Literal["normal", "high"] = Field(
        default="normal", description="high: on a GPU, its kernels start before those of other models"
    )
    tuning: TuningConfig = Field(default=TuningConfig(), description="options of ONNX Runtime")
    tensorrt: TensorRtConfig = Field(default=TensorRtConfig(), description="options of TensorRT's builder")
    precision: Literal["fp32", "fp16", "int8", "auto"] = Field(
        default="auto",
        description="auto: the fastest that keeps the accuracy; without calibrate FP16 on TensorRT, else the file's",
    )
    calibrate: CalibrateConfig | None = Field(default=None, description="images to measure INT8 ranges on")
    quantize: QuantizeConfig = Field(default=QuantizeConfig(), description="how INT8 is made")
    accuracy: AccuracyConfig | None = Field(default=None, description="what reduced precision may cost")
    placement: PlacementConfig = Field(default="auto", description="which nodes run where")
    objects: int | None = Field(
        default=None,
        ge=1,
        description="most boxes that a plan counts behind operators whose result size depends on the image, such as "
        "NonZero; default: as many as they can give",
    )
    skip_rewrites: fields.Names = Field(
        default=(), description="DLA rewrites to leave out ([DLA](dla.md)); names or globs, '*' for all"
    )
    degrade_to: fields.Name | None = Field(
        default=None,
        description="smaller model of the same task, used while a budget is exceeded ([budgets](budgets.md)); loaded at"
        " the start",
    )

    @model_validator(mode="after")
    def _one_kind_of_shapes(self) -> ModelConfig:
        if self.profiles and self.input.shape.extents:
            raise ValueError("profiles and input.shape both set the input's sizes; write one of them")
        return self

    @property
    def is_converted(self) -> bool:
        """Whether the model may run in another precision than the file's; ``auto`` may where it can calibrate."""
        return self.precision in ("fp16", "int8") or (self.precision == "auto" and self.calibrate is not None)

    @property
    def leaves_precision(self) -> bool:
        """Whether the engine chooses the precision: FP16 on TensorRT, else that of the file."""
        return self.precision == "auto" and self.calibrate is None
