"""Table of model families: how the code that published each one feeds and reads it, and how to recognize one.

A row's ``input`` has the keys of ``input:`` that the family fixes; the user chooses the others. Every row has the
public address of its source.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Red, green, blue: (0.485, 0.456, 0.406) and (0.229, 0.224, 0.225) of https://pytorch.org/vision/stable/models.html,
times 255."""


@dataclass(frozen=True, slots=True)
class Family:
    """One family of models.

    Attributes:
        name: common name of the family.
        reads: decoders of its outputs, as ``detect: yolov8``, the usual one first.
        input: input settings of its authors' code.
        source: address of that code or its description.
        export: command of its own tools that writes the ONNX file; empty where there is no single command.
        metadata: key of the file's metadata → text that the value must contain; all keys must match.
        tasks: value of the metadata's ``task`` → the decoder.
        final: options of ``detect: yolov10`` for exports that end in final boxes.
        producer: beginning of the exporter's name in the file.
        takes: possible names of the image input; any name where empty.
        gives: texts that must occur in the names of the outputs, which are joined in lower case by spaces.
        size: usual width and height, where both are dynamic.
        lengths: possible numbers of elements of its single output; any number where empty.
        results: possible numbers of outputs, where only the outputs show the family; any number where empty.
        by_file: whether only the metadata can show the family, never the outputs.
    """

    name: str
    reads: tuple[str, ...]
    input: Mapping[str, object]
    source: str
    export: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)
    final: Mapping[str, object] = field(default_factory=dict)
    producer: str = ""
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    lengths: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    by_file: bool = False


_LETTERBOX = {"resize": "letterbox", "anchor": "center", "pad": 114}
_STRETCH: Mapping[str, object] = {"resize": "stretch"}
_CROP = {"resize": "center_crop", "crop": 0.875}
_UNIT = {"color": "rgb", "mean": (0.0,), "std": (255.0,)}
_IMAGENET = {"color": "rgb", "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
_IMAGENET_BGR = {"color": "bgr", "mean": IMAGENET_MEAN[::-1], "std": IMAGENET_STD[::-1]}
_SIGNED = {"color": "rgb", "mean": (127.5,), "std": (127.5,)}
_RAW_BGR = {"color": "bgr", "mean": (0.0,), "std": (1.0,)}
_CAFFE = {"color": "bgr", "mean": (104.0, 117.0, 123.0), "std": (1.0,)}
_PADDLE = {"color": "bgr", "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
"""PaddleOCR reads images as BGR and subtracts red's mean from blue (``img_mode: BGR`` of its configurations)."""

_PADDLE_LINE = {
    "resize": "letterbox",
    "anchor": "top_left",
    "pad": 127,
    "color": "bgr",
    "mean": (127.5,),
    "std": (127.5,),
}
"""Input of text lines, which PaddleOCR pads with 0 after the normalization."""

_ULTRALYTICS = "https://docs.ultralytics.com/modes/export"
_ULTRALYTICS_TASKS = {
    "detect": "detect: yolov8",
    "segment": "detect: yolov8-seg",
    "obb": "detect: yolov8-obb",
    "pose": "keypoints: yolo-pose",
    "classify": "classify: auto",
}

FAMILIES = (
    Family(
        "Ultralytics RT-DETR",
        ("detect: detr", "detect: yolov10"),
        {**_STRETCH, **_UNIT},
        "https://github.com/ultralytics/ultralytics/blob/main/ultralytics/models/rtdetr/predict.py",
        "yolo export model=rtdetr-l.pt format=onnx",
        metadata={"author": "Ultralytics", "description": "rtdetr"},
        tasks={"detect": "detect: detr"},
        final={"boxes": "relative", "order": "cxcywh"},
        by_file=True,
    ),
    Family(
        "Ultralytics YOLO (v8, 11, 12, 26)",
        ("detect: yolov8", "detect: yolov8-seg", "detect: yolov8-obb", "keypoints: yolo-pose", "detect: yolov10"),
        {**_LETTERBOX, **_UNIT},
        _ULTRALYTICS,
        "yolo export model=yolo11n.pt format=onnx",
        metadata={"author": "Ultralytics"},
        tasks=_ULTRALYTICS_TASKS,
        results=(1,),
    ),
    Family(
        "Ultralytics YOLO, cut before its decoding",
        ("detect: yolov8-raw",),
        {**_LETTERBOX, **_UNIT},
        "https://github.com/ultralytics/ultralytics/blob/main/ultralytics/nn/modules/head.py",
        results=(3, 6),
    ),
    Family(
        "torchvision detectors (Faster, Mask and Keypoint R-CNN, RetinaNet, FCOS, SSD)",
        ("detect: yolov10", "detect: mask-rcnn", "keypoints: keypoint-rcnn"),
        {**_STRETCH, **_UNIT},
        "https://pytorch.org/vision/stable/models.html#object-detection",
        "edgert import torchvision:fasterrcnn_resnet50_fpn",
        producer="pytorch",
        results=(3, 4, 5),
    ),
    Family(
        "TensorFlow detection API",
        ("detect: yolov10",),
        {**_STRETCH, "color": "rgb"},
        "https://github.com/tensorflow/models/blob/master/research/object_detection/exporter_lib_v2.py",
        "python -m tf2onnx.convert --saved-model DIR/saved_model --output model.onnx",
        final={"boxes": "relative", "order": "yxyx", "background": "first"},
        takes=("input_tensor", "input_tensor:0", "image_tensor", "image_tensor:0", "inputs", "inputs:0"),
        gives=("detection_boxes", "detection_classes", "detection_scores", "num_detections"),
    ),
    Family(
        "TensorFlow Lite detectors (SSD, EfficientDet)",
        ("detect: yolov10",),
        {**_STRETCH, "color": "rgb"},
        "https://www.tensorflow.org/lite/examples/object_detection/overview",
        "python -m tf2onnx.convert --tflite model.tflite --output model.onnx",
        final={"boxes": "relative", "order": "yxyx"},
        gives=(":1", ":2", ":3"),
    ),
    Family(
        "MMDetection, by MMDeploy",
        ("detect: yolov10", "detect: mask-rcnn"),
        {"resize": "letterbox", "anchor": "top_left"},
        "https://github.com/open-mmlab/mmdeploy/blob/main/docs/en/04-supported-codebases/mmdet.md",
        "python tools/deploy.py configs/mmdet/detection/detection_onnxruntime_static.py CONFIG.py MODEL.pth a.jpg",
        takes=("input",),
        gives=("dets", "labels"),
    ),
    Family(
        "YOLOv4",
        ("detect: yolov4",),
        {**_STRETCH, **_UNIT},
        "https://github.com/Tianxiaomo/pytorch-YOLOv4/blob/master/tool/torch_utils.py",
        "python demo_pytorch2onnx.py yolov4.pth a.jpg 1 80 608 608",
        takes=("input",),
        gives=("boxes", "confs"),
    ),
    Family(
        "PicoDet without post-processing",
        ("detect: nanodet",),
        {**_STRETCH, **_IMAGENET},
        "https://github.com/PaddlePaddle/PaddleDetection/blob/release/2.8/configs/picodet/_base_/picodet_416_reader.yml",
        "paddle2onnx --model_dir DIR --model_filename model.pdmodel --save_file picodet.onnx",
        results=(8,),
    ),
    Family(
        "Ultralytics YOLO classifier",
        ("classify: auto",),
        {"resize": "center_crop", "crop": 1.0, **_UNIT},
        _ULTRALYTICS,
        "yolo export model=yolo11n-cls.pt format=onnx",
        metadata={"author": "Ultralytics", "task": "classify"},
        tasks=_ULTRALYTICS_TASKS,
    ),
    Family(
        "YOLOv5",
        ("detect: yolov5", "detect: yolov5-seg"),
        {**_LETTERBOX, **_UNIT},
        "https://github.com/ultralytics/yolov5/blob/master/export.py",
        "python export.py --weights yolov5n.pt --include onnx",
        metadata={"stride": "", "names": ""},
    ),
    Family(
        "YOLOX",
        ("detect: yolox",),
        {"resize": "letterbox", "anchor": "top_left", "pad": 114, **_RAW_BGR},
        "https://github.com/Megvii-BaseDetection/YOLOX/blob/main/yolox/data/data_augment.py",
        "python tools/export_onnx.py -n yolox-s -c yolox_s.pth --output-name yolox_s.onnx",
    ),
    Family(
        "NanoDet",
        ("detect: nanodet",),
        {"resize": "letterbox", "anchor": "center", "pad": 0, **_IMAGENET_BGR},
        "https://github.com/RangiLyu/nanodet/blob/main/config/legacy_v0.x_configs/nanodet-m.yml",
        "python tools/export_onnx.py --cfg_path CONFIG.yml --model_path MODEL.ckpt",
        gives=("cls_pred", "dis_pred"),
    ),
    Family(
        "NanoDet-Plus",
        ("detect: nanodet",),
        {**_STRETCH, **_IMAGENET_BGR},
        "https://github.com/RangiLyu/nanodet/blob/main/config/nanodet-plus-m_320.yml",
        "python tools/export_onnx.py --cfg_path CONFIG.yml --model_path MODEL.ckpt",
        results=(1,),
    ),
    Family(
        "FastestDet",
        ("detect: fastestdet",),
        {**_STRETCH, "color": "bgr", "mean": (0.0,), "std": (255.0,)},
        "https://github.com/dog-qiuqiu/FastestDet/blob/main/test.py",
        "python test.py --yaml configs/coco.yaml --weight MODEL.pth --img data/3.jpg --onnx",
    ),
    Family(
        "Ultra-Light-Fast-Generic-Face-Detector",
        ("detect: ssd",),
        {**_STRETCH, "color": "rgb", "mean": (127.0,), "std": (128.0,)},
        "https://github.com/Linzaer/Ultra-Light-Fast-Generic-Face-Detector-1MB/blob/master/vision/ssd/config/fd_config.py",
        "python convert_to_onnx.py",
        gives=("scores", "boxes"),
    ),
    Family(
        "RF-DETR",
        ("detect: detr",),
        {**_STRETCH, **_IMAGENET},
        "https://github.com/roboflow/rf-detr/blob/develop/src/rfdetr/detr.py",
        "python -c 'from rfdetr import RFDETRNano; RFDETRNano().export()'",
        gives=("dets", "labels"),
    ),
    Family(
        "RT-DETR, D-FINE, DEIM",
        ("detect: detr",),
        {**_STRETCH, **_UNIT},
        "https://github.com/lyuwenyu/RT-DETR/blob/main/rtdetrv2_pytorch/references/deploy/rtdetrv2_onnxruntime.py",
        "python tools/export_onnx.py -c CONFIG.yml -r MODEL.pth --check",
        takes=("images",),
        gives=("labels boxes scores",),
    ),
    Family(
        "DETR by Hugging Face",
        ("detect: detr",),
        _IMAGENET,
        "https://huggingface.co/docs/transformers/model_doc/detr",
        "optimum-cli export onnx --model facebook/detr-resnet-50 OUT/",
        takes=("pixel_values",),
        gives=("logits", "pred_boxes"),
    ),
    Family(
        "TAO DetectNet_v2 (PeopleNet)",
        ("detect: detectnet",),
        {**_STRETCH, **_UNIT},
        "https://docs.nvidia.com/tao/tao-toolkit/text/ds_tao/detectnet_v2_ds.html",
        "tao model detectnet_v2 export -m MODEL -k KEY -o MODEL.onnx",
        gives=("output_bbox", "output_cov"),
    ),
    Family(
        "SCRFD (InsightFace)",
        ("detect: scrfd",),
        {"resize": "letterbox", "anchor": "top_left", "pad": 0, "color": "rgb", "mean": (127.5,), "std": (128.0,)},
        "https://github.com/deepinsight/insightface/blob/master/python-package/insightface/model_zoo/scrfd.py",
        "python tools/scrfd2onnx.py CONFIG.py MODEL.pth --output-file scrfd.onnx",
    ),
    Family(
        "YuNet",
        ("detect: yunet",),
        {**_STRETCH, **_RAW_BGR},
        "https://github.com/ShiqiYu/libfacedetection.train/blob/master/README.md",
        "python tools/yunet2onnx.py configs/yunet_n.py MODEL.pth",
        gives=("loc", "conf", "iou"),
    ),
    Family(
        "RTMPose",
        ("keypoints: simcc",),
        {"resize": "letterbox", "anchor": "center", "pad": 0, **_IMAGENET},
        "https://github.com/open-mmlab/mmpose/tree/main/projects/rtmpose",
        "python tools/deploy.py configs/mmpose/pose-detection_simcc_onnxruntime_dynamic.py CONFIG.py MODEL.pth a.jpg",
        gives=("simcc_x", "simcc_y"),
    ),
    Family(
        "PaddleOCR, text detection",
        ("detect: db", "segment: threshold"),
        _PADDLE,
        "https://github.com/PaddlePaddle/PaddleOCR/blob/main/configs/det/PP-OCRv4/PP-OCRv4_mobile_det.yml",
        "paddle2onnx --model_dir DIR --model_filename inference.pdmodel --save_file det.onnx",
        takes=("x",),
        gives=("sigmoid",),
    ),
    Family(
        "PaddleOCR, text recognition",
        ("text: ctc",),
        _PADDLE_LINE,
        "https://github.com/PaddlePaddle/PaddleOCR/blob/main/configs/rec/PP-OCRv4/PP-OCRv4_mobile_rec.yml",
        "paddle2onnx --model_dir DIR --model_filename inference.pdmodel --save_file rec.onnx",
        takes=("x",),
        gives=("softmax",),
        size=(320, 48),
    ),
    Family(
        "PaddleOCR 2, text recognition",
        ("text: ctc",),
        _PADDLE_LINE,
        "https://github.com/PaddlePaddle/PaddleOCR/blob/release/2.6/tools/infer/predict_rec.py",
        "paddle2onnx --model_dir DIR --model_filename inference.pdmodel --save_file rec.onnx",
        takes=("x",),
    ),
    Family(
        "PaddleOCR, text direction",
        ("classify: auto",),
        _PADDLE_LINE,
        "https://github.com/PaddlePaddle/PaddleOCR/blob/release/2.6/tools/infer/predict_cls.py",
        "paddle2onnx --model_dir DIR --model_filename inference.pdmodel --save_file cls.onnx",
        takes=("x",),
        gives=("softmax",),
        lengths=(2,),
    ),
    Family(
        "Caffe and Caffe2 model zoo",
        ("classify: auto",),
        {**_CROP, **_CAFFE},
        "https://github.com/BVLC/caffe/blob/master/examples/00-classification.ipynb",
        producer="onnx-caffe2",
    ),
    Family(
        "torchvision and timm classifiers",
        ("classify: auto",),
        {**_CROP, **_IMAGENET},
        "https://pytorch.org/vision/stable/models.html",
        "python onnx_export.py --model resnet18 resnet18.onnx",
        producer="pytorch",
    ),
    Family(
        "Keras and TensorFlow-Slim classifiers",
        ("classify: auto",),
        {**_CROP, **_SIGNED},
        "https://github.com/tensorflow/models/blob/master/research/slim/preprocessing/inception_preprocessing.py",
        "python -m tf2onnx.convert --saved-model DIR --output model.onnx",
        producer="tf2onnx",
    ),
    Family(
        "DeepLab by TensorFlow",
        ("segment: argmax",),
        {**_STRETCH, **_SIGNED},
        "https://github.com/tensorflow/models/blob/master/research/deeplab/core/feature_extractor.py",
        "python -m tf2onnx.convert --graphdef frozen_inference_graph.pb --inputs sub_7:0 --outputs ResizeBilinear_3:0",
        producer="tf2onnx",
        gives=("resizebilinear",),
    ),
    Family(
        "Segmentation by Hugging Face (SegFormer)",
        ("segment: argmax",),
        {**_STRETCH, **_IMAGENET},
        "https://huggingface.co/docs/transformers/model_doc/segformer",
        "optimum-cli export onnx --model nvidia/segformer-b0-finetuned-ade-512-512 OUT/",
        takes=("pixel_values",),
        gives=("logits",),
    ),
    Family(
        "Torchreid (OSNet)",
        ("embed: l2",),
        {**_STRETCH, **_IMAGENET},
        "https://github.com/KaiyangZhou/deep-person-reid/blob/master/torchreid/data/transforms.py",
        producer="pytorch",
    ),
)
"""All families. Rows identified by outputs alone come last; of rows that fit equally well the first is used."""

PLACEMENT_FAMILIES = (
    Family(
        "ImageNet classifiers",
        ("classify: auto",),
        _CROP,
        "https://pytorch.org/vision/stable/models.html",
        lengths=(1000, 1001),
    ),
    Family(
        "text recognizers",
        ("text: ctc",),
        {"resize": "letterbox", "anchor": "top_left"},
        "https://github.com/PaddlePaddle/PaddleOCR/blob/main/tools/infer/predict_rec.py",
    ),
    Family(
        "person embedders",
        ("embed: l2",),
        _STRETCH,
        "https://github.com/KaiyangZhou/deep-person-reid/blob/master/torchreid/data/transforms.py",
        lengths=(256, 512, 1024, 2048),
    ),
)
"""Kinds of models whose images are usually placed in one way, whoever published them."""
