"""Exports of models with random weights by their authors' own packages, for tests/bench/bench_zoo.py.

    python tools/zoo_exports.py FOLDER [--only NAME ...] [--again]

It runs in a separate environment that is no part of edgert, and only the exported files are kept, because some of these
packages are under the AGPL. It uses the packages that are installed there, names those that are missing, and keeps
existing files. Beside each is a JSON file with its package and the right task and decoder. ``tools/zoo`` makes the
environment; further packages are used if they are installed there: facenet-pytorch, python-doctr, rfdetr, yolov5,
torchreid, effdet.

If torchvision's operators were built for another torch, stubs replace them, as no export of this list runs them.
"""

import argparse
import functools
import importlib.metadata
import importlib.util
import json
import re
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

ZOO = {}


def author(package, task, *names):
    """Return a decorator that registers an exporter of models; ``task`` is the right one, or several with ``|``."""

    def known(function):
        for name in names:
            ZOO[name] = (package, task, function)
        return function

    return known


def written(network, path, size, outputs=("output",), inputs=("images",), channels=3, **options):
    """Export with PyTorch's exporter, as most authors' scripts do."""
    import torch

    network.eval()
    with torch.no_grad():
        torch.onnx.export(
            network, torch.rand(1, channels, *size), str(path), input_names=list(inputs), output_names=list(outputs),
            opset_version=17, dynamo=False, **options,
        )  # fmt: skip


# Ultralytics: https://docs.ultralytics.com/modes/export


@author("ultralytics", "detect: yolov8", "yolov8n", "yolo11n", "yolo12n", "yolov9t", "yolov5nu", "yolov3-tinyu")
@author("ultralytics", "detect: yolov8", "yolov10n", "yolo26n")  # ``end2end: False``, as their metadata say
@author("ultralytics", "detect: yolov8-seg", "yolov8n-seg", "yolo11n-seg", "yolo11n-seg-nms", "yolo26n-seg-end2end")
@author("ultralytics", "detect: yolov8-obb", "yolov8n-obb", "yolo11n-obb", "yolo11n-obb-nms", "yolo26n-obb-end2end")
@author("ultralytics", "keypoints: yolo-pose", "yolov8n-pose", "yolo11n-pose", "yolo11n-pose-nms",
        "yolo26n-pose-end2end")  # fmt: skip
@author("ultralytics", "detect: yolov10", "yolo11n-nms", "yolo26n-end2end", "rtdetr-l")
@author("ultralytics", "classify: auto", "yolov8n-cls", "yolo11n-cls")
def ultralytics(name, path):
    """Export with the package's ``export``, from the description of a network."""
    from ultralytics import RTDETR, YOLO

    file = name.removesuffix("-nms").removesuffix("-end2end")
    file = {"yolov5nu": "yolov5n", "yolov3-tinyu": "yolov3-tiny"}.get(file, file)
    options = {"nms": True} if name.endswith("-nms") else {"end2end": True} if name.endswith("-end2end") else {}
    size = 224 if name.endswith("-cls") else 320
    with tempfile.TemporaryDirectory() as folder:
        network = (RTDETR if name.startswith("rtdetr") else YOLO)(f"{file}.yaml")
        network.ckpt_path = str(Path(folder) / f"{name}.pt")
        network.model.pt_path = network.ckpt_path
        with_boxes(network.model, size)
        shutil.move(network.export(format="onnx", imgsz=size, simplify=False, **options), path)


def kept_output(seen, layer, _, output):
    seen[layer] = output


def with_boxes(network, size):
    """Scale the layers and biases of a random network of Ultralytics, so that it finds about sixty boxes."""
    import torch

    head = network.model[-1]
    image = torch.rand(2, 3, size, size)
    with torch.no_grad():
        if hasattr(head, "dec_score_head"):  # RT-DETR
            for layer in head.dec_score_head:
                torch.nn.init.normal_(layer.weight, std=0.1)
                layer.bias.data[:] = -1
            return
        network.train()
        for _ in range(10):  # statistics of the normalizations
            network(image)
        network.eval()
        for name in ("cv2", "one2one_cv2", "cv3", "one2one_cv3", "cv4", "one2one_cv4"):
            ends = [one[-1] if isinstance(one, torch.nn.Sequential) else one for one in getattr(head, name, None) or []]
            ends = [one for one in ends if isinstance(one, torch.nn.Conv2d)]
            seen = {}
            keep = functools.partial(kept_output, seen)
            hooks = [one.register_forward_hook(keep) for one in ends]
            network(image)
            for hook in hooks:
                hook.remove()
            best = []
            for layer in filter(seen.__contains__, ends):
                scale = 1.5 / (float(seen[layer].std()) + 1e-9)
                layer.weight *= scale
                is_distance = name.endswith("cv2") and getattr(head, "reg_max", 16) == 1
                middle = seen[layer].mean((0, 2, 3)) - layer.bias
                layer.bias[:] = 3.0 * is_distance - middle * scale
                best.append(((seen[layer] - seen[layer].mean((0, 2, 3), True))[0] * scale).amax(0).flatten())
            if name.endswith("cv3") and best:
                least = torch.cat(best).sort(descending=True)[0][60]
                for layer in filter(seen.__contains__, ends):
                    layer.bias -= least


@author("yolov5", "detect: yolov5", "yolov5n", "yolov5s-three-classes")
def yolov5(name, path):
    """Export the network with its ``Detect`` head, as its export.py does."""
    import yolov5
    from yolov5.models.yolo import Model

    model = Model(Path(yolov5.__file__).parent / "models" / "hub" / "yolov5n.yaml", nc=3 if "three" in name else 80)
    model.model[-1].export = True
    written(model, path, (320, 320), ("output0",))


# torchvision: https://pytorch.org/vision/stable/models.html


@author(
    "torchvision", "classify: auto",
    "resnet18", "mobilenet_v3_small", "efficientnet_b0", "squeezenet1_1", "shufflenet_v2_x0_5", "regnet_y_400mf",
)  # fmt: skip
def torchvision_classifier(name, path):
    import torchvision.models as models

    written(getattr(models, name)(weights=None), path, (224, 224))


@author(
    "torchvision", "detect: yolov10", "fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large",
    "retinanet_resnet50_fpn", "fcos_resnet50_fpn", "maskrcnn_resnet50_fpn", "keypointrcnn_resnet50_fpn",
)  # fmt: skip
def torchvision_detector(name, path):
    """Export a detector as in the documentation: boxes, labels and scores, with masks or key points."""
    import torch
    import torchvision.models.detection as models

    sides = {} if name.startswith("ssd") else {"min_size": 320, "max_size": 320}
    network = getattr(models, name)(weights=None, weights_backbone=None, **sides)
    with torch.no_grad():  # so that one class is found
        if hasattr(network, "roi_heads"):
            network.roi_heads.box_predictor.cls_score.bias[1] += 5
        elif name.startswith("ssd"):
            for block in network.head.classification_head.module_list:
                block[-1].bias[1::91] += 5
        else:
            network.head.classification_head.cls_logits.bias[1::91] += 5
    more = {"maskrcnn": ("masks",), "keypointrcnn": ("keypoints", "keypoints_scores")}.get(name.partition("_")[0], ())
    order = ("boxes", "labels", "scores") if hasattr(network, "roi_heads") else ("boxes", "scores", "labels")
    written(network, path, (320, 320), (*order, *more), ("images",))


@author("torchvision", "segment: argmax", "lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large")
def torchvision_segmentation(name, path):
    """Export only the map of classes, which the network returns in a mapping."""
    import torch
    import torchvision.models.segmentation as models

    class Out(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = getattr(models, name)(weights=None, weights_backbone=None, num_classes=21)

        def forward(self, images):
            return self.network(images)["out"]

    written(Out(), path, (320, 320), ("out",))


# timm: https://github.com/huggingface/pytorch-image-models/blob/main/onnx_export.py


@author(
    "timm", "classify: auto",
    "resnet10t", "mobilenetv4_conv_small", "convnext_atto", "vit_tiny_patch16_224", "efficientnet_lite0", "repvgg_a0",
)  # fmt: skip
@author("timm", "embed: l2", "resnet10t-features", "vit_small_patch16_224-features")
def timm(name, path):
    """Export with the package's exporter."""
    import timm
    from timm.utils.onnx import onnx_export

    kind, _, features = name.partition("-")
    model = timm.create_model(kind, pretrained=False, exportable=True, **({"num_classes": 0} if features else {}))
    onnx_export(model, str(path), input_names=["input0"], output_names=["output0"])


# transformers: names as https://github.com/huggingface/optimum-onnx gives them


class HuggingFace:
    """A model class of transformers, its configuration, the size, and the names of its outputs."""

    def __init__(self, kind, size, outputs, **config):
        self.kind, self.size, self.outputs, self.config = kind, size, outputs, config


BOXES = ("logits", "pred_boxes")
_RT = {"encoder_hidden_dim": 64, "encoder_in_channels": [32, 64, 128], "feat_strides": [8, 16, 32], "d_model": 64,
       "decoder_in_channels": [64, 64, 64], "decoder_layers": 2, "num_labels": 80}  # fmt: skip
HUGGING_FACE = {
    "rt-detr": HuggingFace("RTDetrForObjectDetection", (320, 320), BOXES, **_RT),
    "rt-detr-v2": HuggingFace("RTDetrV2ForObjectDetection", (320, 320), BOXES, **_RT),
    "d-fine": HuggingFace("DFineForObjectDetection", (320, 320), BOXES, **_RT),
    "yolos": HuggingFace("YolosForObjectDetection", (256, 256), BOXES, hidden_size=64, num_hidden_layers=2,
                         num_attention_heads=2, intermediate_size=128, image_size=[256, 256], num_labels=91),
    "segformer": HuggingFace("SegformerForSemanticSegmentation", (256, 256), ("logits",), num_labels=150),
    "mobilevit-seg": HuggingFace("MobileViTForSemanticSegmentation", (256, 256), ("logits",), num_labels=21),
    "mobilenet-v2-seg": HuggingFace("MobileNetV2ForSemanticSegmentation", (256, 256), ("logits",), num_labels=21),
    "vit": HuggingFace("ViTForImageClassification", (224, 224), ("logits",), num_labels=1000, hidden_size=64,
                       num_hidden_layers=2, num_attention_heads=2, intermediate_size=128),
    "convnext-v2": HuggingFace("ConvNextV2ForImageClassification", (224, 224), ("logits",), num_labels=12,
                               hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1]),
    "swin": HuggingFace("SwinForImageClassification", (224, 224), ("logits",), num_labels=5, embed_dim=24,
                        depths=[1, 1, 1, 1], num_heads=[1, 2, 4, 8]),
    "glpn": HuggingFace("GLPNForDepthEstimation", (256, 256), ("predicted_depth",), hidden_sizes=[16, 32, 64, 128],
                        num_attention_heads=[1, 2, 4, 8], decoder_hidden_size=32),
    "dpt": HuggingFace("DPTForDepthEstimation", (224, 224), ("predicted_depth",), hidden_size=64, num_hidden_layers=4,
                       num_attention_heads=2, intermediate_size=128, image_size=224, backbone_out_indices=[0, 1, 2, 3],
                       neck_hidden_sizes=[16, 32, 64, 64], fusion_hidden_size=32),
    "vitpose": HuggingFace("VitPoseForPoseEstimation", (256, 192), ("heatmaps",), num_labels=17),
    "swin2sr": HuggingFace("Swin2SRForImageSuperResolution", (64, 64), ("reconstruction",), embed_dim=24, depths=[1, 1],
                           num_heads=[2, 2]),
}  # fmt: skip


@author("transformers", "detect: detr", "rt-detr", "rt-detr-v2", "d-fine", "yolos")
@author("transformers", "segment: argmax", "segformer", "mobilevit-seg", "mobilenet-v2-seg")
@author("transformers", "classify: auto", "vit", "convnext-v2", "swin")
@author("transformers", "depth: relative|depth: inverse|depth: metric", "glpn", "dpt")
@author("transformers", "keypoints: heatmap", "vitpose")
@author("transformers", "image: unit", "swin2sr")
def transformers(name, path):
    """Export a small model of its class with only the named outputs, as optimum does."""
    import torch
    import transformers as package

    wanted = HUGGING_FACE[name]
    kind = getattr(package, wanted.kind)
    config = dict(wanted.config)
    if name in ("rt-detr", "rt-detr-v2"):
        config["backbone_config"] = package.RTDetrResNetConfig(
            embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1], layer_type="basic",
            out_features=["stage2", "stage3", "stage4"],
        )  # fmt: skip
    elif name == "vitpose":
        config["backbone_config"] = package.VitPoseBackboneConfig(
            hidden_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=[256, 192], out_indices=[2]
        )
    network = kind(kind.config_class(**config))

    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, pixel_values):
            found = self.network(pixel_values)
            return tuple(found[key] for key in wanted.outputs)

    axes = {"pixel_values": {0: "batch_size"}, **{key: {0: "batch_size"} for key in wanted.outputs}}
    written(Named(), path, wanted.size, wanted.outputs, ("pixel_values",), dynamic_axes=axes)


# segmentation_models.pytorch: https://smp.readthedocs.io/en/latest/save_load.html, and its examples of export


@author("segmentation-models-pytorch", "segment: argmax", "smp-unet-12", "smp-deeplabv3plus-21", "smp-fpn-4")
@author("segmentation-models-pytorch", "segment: threshold", "smp-unet-1", "smp-linknet-1")
def smp(name, path):
    """Export a segmentation network with a small, random encoder."""
    import segmentation_models_pytorch as package

    _, kind, classes = name.split("-")
    create = {"unet": package.Unet, "deeplabv3plus": package.DeepLabV3Plus, "fpn": package.FPN,
              "linknet": package.Linknet}[kind]  # fmt: skip
    network = create("resnet18", encoder_weights=None, classes=int(classes))
    written(network, path, (256, 256), inputs=("input",))


# Others


@author("rfdetr", "detect: detr", "rf-detr-nano")
def rfdetr(name, path):
    from rfdetr import RFDETRNano

    with tempfile.TemporaryDirectory() as folder:
        RFDETRNano(pretrain_weights=None, device="cpu").export(output_dir=folder, simplify=False)
        shutil.move(next(Path(folder).rglob("*.onnx")), path)


@author("python-doctr", "detect: db", "db_mobilenet_v3_large")
@author("python-doctr", "text: ctc", "crnn_mobilenet_v3_small")
def doctr(name, path):
    """Export with the package: https://mindee.github.io/doctr/using_doctr/using_model_export.html."""
    import torch
    from doctr import models
    from doctr.models.utils import export_model_to_onnx

    kind = models.detection if name.startswith("db") else models.recognition
    network = getattr(kind, name)(pretrained=False, pretrained_backbone=False, exportable=True).eval()
    size = (512, 512) if name.startswith("db") else (32, 128)
    made = export_model_to_onnx(network, str(path.with_suffix("")), torch.rand(1, 3, *size))
    shutil.move(made, path) if Path(made) != path else None


@author("facenet-pytorch", "embed: l2", "inception-resnet-v1")
def facenet(name, path):
    from facenet_pytorch import InceptionResnetV1

    written(InceptionResnetV1(pretrained=None), path, (160, 160), inputs=("input",))


@author("torchreid", "embed: l2", "osnet_x0_5")
def torchreid(name, path):
    """Export an embedder of persons, without the head for training."""
    from torchreid.reid.models import build_model

    written(build_model(name, num_classes=751, pretrained=False), path, (256, 128))


@author("rapidocr_onnxruntime", "detect: db", "ch_PP-OCRv4_det_infer")
@author("rapidocr_onnxruntime", "text: ctc", "ch_PP-OCRv4_rec_infer")
@author("rapidocr_onnxruntime", "classify: auto", "ch_ppocr_mobile_v2.0_cls_infer")
def rapidocr(name, path):
    """Copy PaddleOCR's models with their weights, which the package ships as paddle2onnx exported them."""
    package = Path(importlib.util.find_spec("rapidocr_onnxruntime").origin).parent
    shutil.copy(package / "models" / f"{name}.onnx", path)


@author("nudenet", "detect: yolov8", "nudenet_320n")
def nudenet(name, path):
    """Copy a detector with its weights, which the package ships as Ultralytics exported it."""
    shutil.copy(Path(importlib.util.find_spec("nudenet").origin).with_name("320n.onnx"), path)


@author("effdet", "", "efficientdet_lite0")
def effdet(name, path):
    """Export ten raw maps of five levels, which no decoder reads; the right result is an error."""
    from effdet import create_model

    written(create_model(f"tf_{name}", pretrained=False, pretrained_backbone=False), path, (320, 320),
            [f"out{n}" for n in range(10)])  # fmt: skip


def stand_in():
    """Define stubs of torchvision's operators, so that it can be imported without them."""
    import torch

    for name in [one for one in sys.modules if one.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    text = Path(importlib.util.find_spec("torchvision").origin).with_name("_meta_registrations.py").read_text()
    library = torch.library.Library("torchvision", "DEF")
    for name in set(re.findall(r"torchvision::(\w+)", text)):
        library.define(f"{name}(Tensor x) -> Tensor")
    sys.modules["edgert_zoo_library"] = library  # as long as it is there, so are they


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--again", action="store_true", help="replace files that are there")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        stand_in()
    for name, (package, task, function) in ZOO.items():
        path = options.folder.absolute() / f"{name}.onnx"
        if options.only and name not in options.only:
            continue
        try:
            version = importlib.metadata.version(package)
            if options.again or not path.exists():
                function(name, path)
        except Exception as error:  # noqa: BLE001 - of whatever kind: it is said, and the next one is tried
            print(f"missing {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            path.unlink(missing_ok=True)
            continue
        path.with_suffix(".json").write_text(json.dumps({"package": f"{package} {version}", "task": task}) + "\n")
        print(f"{name}: {path.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
