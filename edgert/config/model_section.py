"""The sections under ``models:``: an ONNX file, its task, and its preprocessing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from edgert.config import fields
from edgert.config.engine_choice import PlacementConfig
from edgert.config.fields import KindIn
from edgert.config.stages import verb_tag
from edgert.kinds import BACKENDS, DECODERS


class ShapeConfig(fields.Section):
    """Sizes that a model with dynamic dimensions is built for: one, or [least, usual, largest].

    A Jetson's GPU engine takes them all and is fastest at the usual one; everything else runs at the usual one.
    """

    N: fields.Extent | None = Field(default=None, description="images at a time")
    H: fields.Extent | None = Field(default=None, description="height, pixels")
    W: fields.Extent | None = Field(default=None, description="width, pixels")

    @property
    def extents(self) -> Mapping[str, tuple[int, int, int]]:
        """Letter → least, usual and largest size, of those that are written."""
        written = {letter: getattr(self, letter) for letter in ("N", "H", "W")}
        return {letter: extent for letter, extent in written.items() if extent is not None}

    @property
    def is_open(self) -> bool:
        """Whether there is more than one size."""
        return any(least != largest for least, _, largest in self.extents.values())


class InputConfig(fields.Section):
    """How an image becomes the model's input tensor."""

    resize: Literal["letterbox", "stretch", "center_crop", "none"] = Field(
        default="letterbox",
        description="letterbox keeps the shape and pads; stretch does not; none wants frames of that size",
    )
    anchor: Literal["center", "top_left"] = Field(default="center", description="where letterbox puts the image")
    pad: int = Field(default=114, ge=0, le=255, description="gray level of the letterbox border")
    crop: float = Field(
        default=1.0, gt=0, le=1, description="center_crop: part of the short side to keep, 0.875 = 224 of 256"
    )
    interpolation: Literal["linear", "area", "nearest", "cubic"] = Field(
        default="linear", description="how planes are scaled"
    )
    color: Literal["rgb", "bgr", "gray"] = Field(default="rgb", description="order of the channels")
    mean: fields.PerChannel = Field(
        default=(0.0,), description="subtracted, in gray levels 0-255; one value or one per channel"
    )
    std: fields.PerChannel = Field(
        default=(1.0,),
        description="divided by, in gray levels; one value or one per channel; inputs of uint8 want mean: 0 and std: 1",
    )
    layout: Literal["auto", "nchw", "nhwc"] = Field(default="auto", description="auto reads it off the input's shape")
    size: fields.Size | None = Field(
        default=None,
        description="network size, for models with open height and width; another than a fixed one is an error",
    )
    shape: ShapeConfig = Field(
        default=ShapeConfig(), description="sizes by letter, for dynamic dimensions: {H: [320, 480, 640], N: [1, 1, 4]}"
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
        description="text file, one class name a line, or a list that is shipped: coco, coco91, coco17, imagenet, voc, "
        "voc21 or cityscapes; the names in the model file when left out",
    )


class _Read(_Task):
    options: dict[str, Any] = Field(default_factory=dict, description="settings of this decoder alone")


class DetectTask(_Read):
    """Boxes."""

    detect: Annotated[str, KindIn(DECODERS["detect"])] = Field(
        description="layout of the output; yolov8 serves v8, v9, v11 and v12, yolov10 every head that did its own NMS, "
        "detr RT-DETR, D-FINE, DEIM and RF-DETR"
    )
    score: fields.Fraction = Field(default=0.25, description="lowest score that counts")
    iou: fields.Fraction = Field(
        default=0.45,
        description="overlap above which the weaker of two boxes of a class is dropped; of any two, whatever their "
        "classes, with options: {agnostic: true}",
    )
    limit: int = Field(default=300, ge=1, description="most boxes per frame")


class ClassifyTask(_Read):
    """One label for the whole image."""

    classify: Annotated[str, KindIn(DECODERS["classify"])] = Field(
        description="what the output is; auto looks at the values"
    )
    top: int = Field(default=5, ge=1, description="number of classes in a result")


class SegmentTask(_Read):
    """A class for every pixel."""

    segment: Annotated[str, KindIn(DECODERS["segment"])] = Field(
        description="best of many classes, or one map above a threshold"
    )
    threshold: fields.Fraction = Field(default=0.5, description="for segment: threshold")


class KeypointsTask(_Read):
    """Points of bodies or things."""

    keypoints: Annotated[str, KindIn(DECODERS["keypoints"])] = Field(description="layout of the output")
    score: fields.Fraction = Field(default=0.25, description="lowest score that counts")
    iou: fields.Fraction = Field(default=0.45, description="overlap above which the weaker of two bodies is dropped")
    limit: int = Field(default=100, ge=1, description="most bodies per frame")


class EmbedTask(_Read):
    """A vector to compare with others."""

    embed: Annotated[str, KindIn(DECODERS["embed"])] = Field(description="l2 scales the vector to length 1")
    match: fields.FilePath | None = Field(
        default=None,
        description="a [gallery](tasks.md#a-gallery), `.npz` or `.json`: its most similar vector names the record",
    )
    threshold: float = Field(default=0.5, ge=-1, le=1, description="least similarity (cosine) to be named")


class TextTask(_Read):
    """What a line of text reads."""

    text: Annotated[str, KindIn(DECODERS["text"])] = Field(
        description="layout of the output; labels are its dictionary, one character a line"
    )


class DepthTask(_Read):
    """How far away every pixel is."""

    depth: Annotated[str, KindIn(DECODERS["depth"])] = Field(
        description="metric in meters; inverse: greater is nearer; relative: greater is farther"
    )


class ImageTask(_Read):
    """Another image, which sinks show."""

    image: Annotated[str, KindIn(DECODERS["image"])] = Field(
        description="what the output's numbers are: unit 0-1, byte 0-255, signed -1-1"
    )
    color: Literal["rgb", "bgr"] = Field(default="rgb", description="order of the output's channels")


class AnomalyTask(_Read):
    """How unusual the image is, and where."""

    anomaly: Annotated[str, KindIn(DECODERS["anomaly"])] = Field(description="a map, and perhaps a score")
    threshold: float = Field(default=0.5, description="score from which on the image is unusual")


class PythonTask(_Task):
    """A decoder written by the user."""

    python: str = Field(pattern=fields.CODE_NAME, description="module:function(outputs, geometry) -> record")
    args: dict[str, Any] = Field(default_factory=dict, description="further arguments of the function")


TASKS: Mapping[str, type[_Task]] = {
    "detect": DetectTask,
    "classify": ClassifyTask,
    "segment": SegmentTask,
    "keypoints": KeypointsTask,
    "embed": EmbedTask,
    "text": TextTask,
    "depth": DepthTask,
    "image": ImageTask,
    "anomaly": AnomalyTask,
    "python": PythonTask,
}
TASK_VERBS = tuple(TASKS)
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
TaskConfig = Annotated[_AnyTask, Discriminator(lambda data: verb_tag(data, TASK_VERBS))]


def verb_of(task: TaskConfig) -> str:
    """Return ``detect``, ``classify``, ..."""
    return next(verb for verb in TASK_VERBS if verb in type(task).model_fields)


def value_of(task: TaskConfig) -> str:
    """Return the value of the verb, like ``yolox``."""
    return str(getattr(task, verb_of(task)))


class CalibrateConfig(fields.Section):
    """Images from which INT8 ranges are measured."""

    images: fields.ImagesPath = Field(description="typical images: a folder, a glob, a video, or python:module:name")
    method: Literal["minmax", "percentile", "entropy", "mse", "auto"] = Field(
        default="mse", description="how ranges are cut"
    )
    limit: int = Field(default=256, ge=1, description="most images")
    early_stop: bool = Field(default=True, description="stop when more images no longer move the ranges")


class QuantizeConfig(fields.Section):
    """How INT8 is made, beyond its ranges."""

    equalize: bool = Field(default=False, description="even out the channels of neighboring layers first")
    correct_bias: bool = Field(default=True, description="take off each bias what rounding adds to its channel")
    activation: Literal["affine", "unsigned", "symmetric"] = Field(
        default="affine",
        description="steps of activations on ONNX Runtime: affine spends all on the values there are, unsigned only "
        "where none is negative, symmetric has TensorRT's numbers",
    )
    adaround: fields.Names = Field(
        default=(), description="layers whose weights are rounded by what comes out; names or globs, '*' for all"
    )
    keep: fields.Names = Field(default=(), description="layers that stay in higher precision; names or globs")


class AccuracyConfig(fields.Section):
    """How much accuracy the reduced precision may cost."""

    dataset: fields.FilePath = Field(description="labeled images")
    metric: Literal[
        "map50", "map", "mask_map", "mask_map50", "obb_map", "obb_map50", "oks_map", "oks_map50", "top1", "top5",
        "miou", "cosine", "cer", "exact", "abs_rel", "rmse", "delta1", "psnr", "ssim", "hota", "idf1",
    ] = Field(description="what is compared")  # fmt: skip
    max_drop: fields.Fraction = Field(description="largest loss against fp32 that is accepted")


class TuningConfig(fields.Section):
    """How ONNX Runtime works inside; the results are the same, but for `tf32`.

    `edgert build --tune` finds what is fastest.
    """

    optimization: Literal["all", "extended", "basic", "none"] = Field(
        default="all", description="extended leaves out its own tensor layouts, basic its own operators as well"
    )
    spinning: Literal["auto", "runs"] | bool = Field(
        default="auto",
        description="threads wait for their next piece of work without sleeping; runs: but not from one run of the "
        "model to the next; auto: runs where a source is live, else true, and false with `budgets.cpu`",
    )
    arena: bool = Field(default=True, description="reuses the memory of one run for the next")
    shared_arena: bool = Field(
        default=False, description="that memory serves all models that set this: less of it where they take turns"
    )
    prepacking: bool = Field(default=True, description="a second copy of the weights in the order kernels read them")
    balance: bool = Field(default=False, description="work in ever smaller pieces, for cores of different speed")
    parallel: bool = Field(default=False, description="branches of the model run at the same time")
    channels_last: bool = Field(default=True, description="GPU: kernels for NHWC tensors, where cuDNN has them")
    conv_search: Literal["heuristic", "exhaustive"] = Field(
        default="heuristic",
        description="GPU: convolutions are chosen by cuDNN's guess, or by a long search at every start",
    )
    tf32: bool = Field(default=True, description="GPU: float32 is multiplied with 10 bits of its fraction")


class TensorRtConfig(fields.Section):
    """How TensorRT builds the engine; what is left out is TensorRT's default."""

    workspace: fields.SomeBytes | None = Field(
        default=None,
        description="most scratch memory of its GPU layers; on a board half of what is free when it compiles",
    )
    dla_sram: fields.DlaPool | None = Field(default=None, description="DLA: scratch memory on the chip, a power of two")
    dla_local: fields.DlaPool | None = Field(default=None, description="DLA: memory between its layers, a power of two")
    dla_global: fields.DlaPool | None = Field(default=None, description="DLA: memory of its weights, a power of two")
    optimization: int | None = Field(
        default=None, ge=0, le=5, description="how long kernels are searched for: 0 is quick to build, 5 slow, 3 usual"
    )
    version_compatible: bool = Field(
        default=False, description="later versions of TensorRT can run the engine, which may be slower for it"
    )
    refit: bool = Field(default=False, description="the weights of the engine can be exchanged, which may be slower")
    sparse: bool = Field(
        default=False,
        description="kernels that leave out zeros where weights were trained with two in every four input channels",
    )


class ModelConfig(fields.Section):
    """One model and how to use it."""

    onnx: fields.FilePath = Field(description="the model file")
    task: TaskConfig = Field(description="what its output is")
    input: InputConfig = Field(default=InputConfig(), description="what its input wants to see")
    profiles: dict[fields.Name, dict[str, tuple[int, ...]]] = Field(
        default_factory=dict,
        description="named shapes for a model with dynamic dimensions: {small: {x: [1,3,320,320]}}",
    )
    backend: Annotated[str, KindIn(BACKENDS)] = Field(
        default="auto",
        description="what runs it, whatever engines: lists: ONNX Runtime, there or on a GPU, OpenVINO (an extra), "
        "TensorRT, or null, which runs nothing",
    )
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads of the engine; by default its share of the cores"
    )
    replicas: int | None = Field(
        default=None,
        ge=1,
        description="frames it works on at a time, which share the threads; by default as many as "
        "there are threads for files, and one for cameras and crops",
    )
    priority: Literal["normal", "high"] = Field(
        default="normal",
        description="high: on a GPU, its work starts before that of other models that waits there; on the CPU, where "
        "threads share the cores, it changes nothing",
    )
    tuning: TuningConfig = Field(default=TuningConfig(), description="how ONNX Runtime works inside")
    tensorrt: TensorRtConfig = Field(default=TensorRtConfig(), description="how TensorRT builds the engine")
    precision: Literal["fp32", "fp16", "int8", "auto"] = Field(
        default="auto",
        description="auto: the fastest that keeps the accuracy; without calibrate FP16 on TensorRT, else the file's",
    )
    calibrate: CalibrateConfig | None = Field(default=None, description="where INT8 ranges come from")
    quantize: QuantizeConfig = Field(default=QuantizeConfig(), description="how INT8 is made, beyond its ranges")
    accuracy: AccuracyConfig | None = Field(default=None, description="what reduced precision may cost")
    placement: PlacementConfig = Field(default="auto", description="which nodes run where")
    skip_rewrites: fields.Names = Field(
        default=(), description="rewrites for the DLA that are left out; names or globs (docs/dla.md), '*' for all"
    )
    degrade_to: fields.Name | None = Field(
        default=None,
        description="a smaller model of the same task that takes its place, frame by frame, when a budget is exceeded "
        "and budgets.when_exceeded is degrade; it is loaded from the start",
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
        """Whether the precision is left to what runs the model: to TensorRT, FP16; else that of the file."""
        return self.precision == "auto" and self.calibrate is None
