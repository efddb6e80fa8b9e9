"""Two exporters and two libraries of models, on stand-ins for PyTorch, torchvision and timm."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from edgert.errors import BuildError, DeviceError, ModelError
from edgert.importer.conversion import kind_of
from edgert.importer.conversion_process import Request
from edgert.importer.torch_export import Call, detections, export, inverted_inputs, output_names
from edgert.importer.torch_model import _check_open_dimensions, named_model
from tests.helpers.errors import Exactly, raises


class OnnxExporterError(RuntimeError):
    """As torch.onnx has."""


class Tensor:
    """Enough of a tensor."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def detach(self) -> Tensor:
        return self

    def __rsub__(self, other: float) -> Tensor:
        return self


class Module:
    """Enough of an nn.Module: a detector that takes images and returns boxes."""

    def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
        return [{"boxes": Tensor(3, 4), "labels": Tensor(3), "scores": Tensor(3)}]

    def eval(self) -> Module:
        return self

    def named_modules(self) -> list[tuple[str, Any]]:
        return []

    def __call__(self, images: Any) -> list[dict[str, Tensor]]:
        return self.forward(images)


class Exporters:
    """``torch``, whose exporters fail as they are asked to and note their calls."""

    def __init__(self, dynamo: str = "", traced: str = "") -> None:
        self.fails, self.calls = {True: dynamo, False: traced}, list[dict[str, Any]]()
        self.nn, self.no_grad = SimpleNamespace(Module=Module), nullcontext
        self.onnx = SimpleNamespace(export=self._export, OnnxExporterError=OnnxExporterError)
        self.manual_seed = lambda _: None
        self.rand = Tensor

    def _export(self, module: Any, inputs: Any, *path: str, dynamo: bool, **settings: Any) -> Any:
        self.calls.append({"dynamo": dynamo, **settings})
        if self.fails[dynamo]:
            raise OnnxExporterError("pages of advice") from ValueError(self.fails[dynamo])
        graph = SimpleNamespace(inputs=[SimpleNamespace(name="images", shape=(1, 3, 8, 8))], outputs=[])
        return SimpleNamespace(model=SimpleNamespace(graph=graph), save=lambda name: None)


def called(module: Any = None, **settings: Any) -> Call:
    image = Tensor(1, 3, 8, 8)
    return Call(module or Module(), (image,), {}, Module()(image), **settings)


def test_the_older_exporter_is_asked_where_the_first_fails(tmp_path: Path) -> None:
    torch = Exporters(dynamo="depends on data")
    made = export(torch, called(), None, Request("function", "mine:model", opset=22), tmp_path / "m.onnx")
    assert made.is_traced and made.outputs == ["boxes", "labels", "scores"] and made.inputs == {"image": [1, 3, 8, 8]}
    assert "dynamo=False" in made.exporter and "torch.export cannot: ValueError: depends on data" in made.exporter
    asked = torch.calls[1]
    assert asked["opset_version"] == 20 and asked["dynamic_axes"] == {name: {0: "objects"} for name in made.outputs}


def test_a_model_that_the_first_cannot_export_goes_to_the_older_at_once(tmp_path: Path) -> None:
    torch = Exporters(dynamo="depends on data")
    made = export(torch, called(is_traced_first=True), None, Request("named", "m"), tmp_path / "m.onnx")
    assert [one["dynamo"] for one in torch.calls] == [False] and "cannot" not in made.exporter


def test_when_both_fail_the_error_has_both_reasons(tmp_path: Path) -> None:
    torch = Exporters(dynamo="depends on data", traced="no such operator")
    with pytest.raises(BuildError, match="PyTorch cannot export mine:model") as caught:
        export(torch, called(), None, Request("function", "mine:model"), tmp_path / "m.onnx")
    assert "depends on data" in caught.value.why and "no such operator" in caught.value.why
    assert "dynamo=False" in caught.value.fix


def test_an_exported_program_has_one_exporter(tmp_path: Path) -> None:
    torch = Exporters(dynamo="depends on data")
    with pytest.raises(BuildError):
        export(torch, called(module=object()), None, Request("program", "m.pt2"), tmp_path / "m.onnx")
    assert len(torch.calls) == 1


class Numbers(np.ndarray):  # type: ignore[type-arg]
    """An array with the methods of a tensor that a second input needs."""

    def is_floating_point(self) -> bool:
        return self.dtype.kind == "f"

    def numel(self) -> int:
        return self.size


def test_a_second_input_has_other_numbers() -> None:
    torch = SimpleNamespace(Tensor=Numbers)
    image, ones, index = (np.array(one).view(Numbers) for one in ([0.0, 0.25, 1.0], [1.0, 1.0], [3, 4]))
    found = inverted_inputs(torch, ((image, [ones]), {"index": index, "flag": True}))
    assert found[0][0].tolist() == [1.0, 0.75, 0.0] and found[0][1][0].tolist() == [-1.0, -1.0]
    assert found[1]["index"].tolist() == [3, 4] and found[1]["flag"] is True


class Pair(NamedTuple):
    """Inputs of a module that are no plain tuple."""

    left: Any
    right: Any


def test_named_tuples_stay_what_they_are() -> None:
    found = inverted_inputs(SimpleNamespace(Tensor=Numbers), Pair(np.array([0.0, 1.0]).view(Numbers), 3))
    assert isinstance(found, Pair) and found.left.tolist() == [1.0, 0.0] and found.right == 3


def test_a_dimension_cannot_stay_open_where_the_input_has_another_name() -> None:
    request = Request("named", "torchvision:ssd300_vgg16", dynamic={"images": ["n"]})
    with pytest.raises(BuildError, match="dimensions of 'images' cannot stay open") as caught:
        _check_open_dimensions({"image": [1, 3, 8, 8]}, request)
    assert caught.value.why.endswith("other inputs: image")


def test_outputs_of_detectors_have_their_own_names() -> None:
    found = Module()(Tensor(1))
    assert detections(found) is found[0] and output_names(found) == ["boxes", "labels", "scores"]
    assert detections(({"logits": Tensor(1)},)) is None and output_names(({"logits": Tensor(1)},)) is None


# Models by name.


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The settings that torchvision's and timm's makers of models are called with, one after the other."""
    asked = list[dict[str, Any]]()

    class Detector(Module):
        def __init__(self) -> None:
            self.transform = SimpleNamespace(min_size=(800,), max_size=1333)

    class Weights(dict[str, Any]):
        DEFAULT = SimpleNamespace(name="V2", transforms=lambda: SimpleNamespace(crop_size=[224], resize_size=[256]))

        def __iter__(self) -> Any:
            return iter([self.DEFAULT])

    def get_model(name: str, **settings: Any) -> Module:
        asked.append({"name": name, **settings})
        return Detector() if "rcnn" in name else Module()

    models = SimpleNamespace(segmentation="segmentation", detection="detection", get_model=get_model)
    models.list_models = lambda module: {"detection": ["fasterrcnn_x"], "segmentation": []}.get(
        str(module), ["resnet18"]
    )
    models.get_model_weights = lambda name: Weights(V2=Weights.DEFAULT)
    models.get_model_builder = lambda name: (
        (lambda weights, weights_backbone: None) if "rcnn" in name else (lambda weights, **settings: None)
    )
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=models))  # type: ignore[arg-type]

    def create_model(name: str, **settings: Any) -> Module:
        if settings["pretrained"]:
            raise OSError("no network")
        asked.append({"name": name, **settings})
        return Module()

    data = SimpleNamespace(resolve_model_data_config=lambda module: {"input_size": (3, 224, 320)})
    timm = SimpleNamespace(create_model=create_model, data=data)
    timm.list_models, timm.list_pretrained = (lambda: ["vit_tiny"]), (lambda: ["vit_tiny.a1"])
    monkeypatch.setitem(sys.modules, "timm", timm)  # type: ignore[arg-type]
    return asked


def named(
    source: str, weights: str = "random", size: tuple[int, int] | None = None
) -> tuple[Any, tuple[int, ...], bool]:
    assert kind_of(source) == "named"
    module, (image,), is_traced = named_model(Exporters(), Request("named", source, weights=weights, size=size))
    return module, image.shape, is_traced


def test_a_detector_is_made_at_the_size_of_its_own_transform(libraries: list[dict[str, Any]]) -> None:
    assert named("torchvision:fasterrcnn_x")[1:] == ((1, 3, 800, 800), True)
    assert libraries == [{"name": "fasterrcnn_x", "weights": None, "weights_backbone": None}]
    module, shape, _ = named("torchvision:fasterrcnn_x", "V2", (640, 480))
    assert shape == (1, 3, 480, 640) and (module.transform.min_size, module.transform.max_size) == ((480,), 640)
    assert libraries[1]["weights"].name == "V2"


def test_classifiers_take_what_their_weights_were_trained_on(libraries: list[dict[str, Any]]) -> None:
    assert named("torchvision:resnet18")[1:] == ((1, 3, 224, 224), False)
    assert named("timm:vit_tiny.a1")[1:] == ((1, 3, 224, 320), False)
    assert libraries[1] == {"name": "vit_tiny.a1", "pretrained": False, "exportable": True}


def test_mistakes_in_names_are_said_with_what_is_near(libraries: list[dict[str, Any]]) -> None:
    with raises(ModelError, "torchvision has no model 'fastercnn_x'", fix=Exactly("near it: fasterrcnn_x")):
        named("torchvision:fastercnn_x")
    with raises(ModelError, "has no weights 'V9'", fix=Exactly("DEFAULT, V2, random")):
        named("torchvision:resnet18", "V9")
    with pytest.raises(ModelError, match="has no weights 'V2'"):
        named("timm:vit_tiny", "V2")


def test_what_is_missing_is_said(libraries: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(BuildError, "the weights 'DEFAULT' of timm:vit_tiny cannot be had", fix="--weights random"):
        named("timm:vit_tiny", "DEFAULT")
    monkeypatch.setitem(sys.modules, "timm", None)
    with raises(DeviceError, "timm cannot be used here", fix="pip install timm"):
        named("timm:vit_tiny")
