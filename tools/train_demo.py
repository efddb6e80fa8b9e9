"""Train the demo's detector on the conveyor scene and write it as ONNX.

From the project's root: ``python -m tools.train_demo --out FILE``. Needs PyTorch beside edgert itself; a CPU will do,
``--device cuda --workers 7`` is how the shipped file was made. The same options draw the same images.
The recipe, all of it seeded:

* Data: frames of conveyor scenes with seeds from 1,000,000 up (evaluation and demo use small seeds), drawn as training
  goes. Each is zoomed 0.85 to 1.2 times at a random place of the network's image; its channels and brightness change
  a little; half of them pass through the halved chroma of video.
* Network: 256x320 RGB divided by 255, letterboxed in the middle of gray 114. Conv, ReLU, MaxPool, Add, Concat and
  nearest upsampling only, channels in multiples of 16, about 0.35 million parameters; levels of strides 8, 16 and 32.
* Output: YOLOX's raw rows [1, 1680, 5 + classes]: center offsets and log sizes in strides, sigmoid objectness, sigmoid
  classes. (Ge et al., YOLOX: Exceeding YOLO Series in 2021.)
* Labels: each part takes the nine cells that predict it best, by score and overlap (task alignment, Feng et al., TOOD,
  2021); objectness learns the overlap with a varifocal loss (Zhang et al., 2021), boxes learn by generalized IoU.
* Steps: AdamW, one cosine cycle, batch 8, average of weights. What is written is the average, BatchNorm folded.

The finished file is evaluated on scenes it never saw and refused below a mean average precision of 0.90 at IoU 0.5.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import cv2
import numpy as np
import numpy.typing as npt
import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from pipelines.conveyor import LABELS, Conveyor
from tests.helpers.demo_detector import average_precision, compare

ROOT = Path(__file__).resolve().parents[1]
RECIPE = "1"
WIDTH, HEIGHT, STRIDES, PAD = 320, 256, (8, 16, 32), 114
FIRST_SEED, SCENES = 1_000_000, 40
FRAME_SIZES = ((640, 480), (640, 360), (512, 384), (800, 600), (960, 540))
MOST_PARTS, BATCH = 32, 8
PEAK = 6e-3
"""Highest learning rate."""
LEAST = 0.90
Batch = tuple[Tensor, Tensor, Tensor]
U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]


class ConvRelu(nn.Sequential):
    """Convolution, BatchNorm, ReLU."""

    def __init__(self, inputs: int, outputs: int, size: int = 3, stride: int = 1) -> None:
        conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class Residual(nn.Module):
    """x plus a narrower 1x1 and 3x3 convolution of x."""

    def __init__(self, channels: int, narrow: int) -> None:
        super().__init__()
        self.body = nn.Sequential(ConvRelu(channels, narrow, 1), ConvRelu(narrow, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Head(nn.Module):
    """One level (B, F, h, w) → (B, 5 + C, cells). Each level has its own: their BatchNorm statistics differ."""

    def __init__(self, inputs: int, width: int, classes: int, cells: int) -> None:
        super().__init__()
        self.cells = cells
        self.place, self.name = ConvRelu(inputs, width), ConvRelu(inputs, width)
        self.boxes, self.object, self.kinds = (nn.Conv2d(width, n, 1) for n in (4, 1, classes))
        for conv in (self.object, self.kinds):
            nn.init.constant_(conv.bias, -math.log(99))  # everything starts at a score of 0.01

    def forward(self, level: Tensor) -> Tensor:
        place, name = self.place(level), self.name(level)
        parts = (self.boxes(place), self._score(self.object(place)), self._score(self.kinds(name)))
        return torch.cat(parts, 1).reshape(-1, 5 + self.kinds.out_channels, self.cells)  # plain numbers: no Shape nodes

    def _score(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(logits) if torch.onnx.is_in_onnx_export() else logits


class Detector(nn.Module):
    """Images (B, 3, H, W) in 0 to 1 → rows (B, N, 5 + C): offsets, log sizes, objectness and class logits."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(ConvRelu(3, 16, stride=2), ConvRelu(16, 32, stride=2))
        self.eighth = nn.Sequential(ConvRelu(32, 64, stride=2), Residual(64, 32))
        self.sixteenth = nn.Sequential(ConvRelu(64, 96, stride=2), Residual(96, 32), Residual(96, 32))
        self.last = nn.Sequential(nn.MaxPool2d(2), ConvRelu(96, 96, 1), Residual(96, 32), Residual(96, 32))
        self.narrow = nn.ModuleList(ConvRelu(channels, 48, 1) for channels in (64, 96, 96))
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.merge = ConvRelu(48, 48)
        self.heads = nn.ModuleList(Head(48, 32, classes, (WIDTH // s) * (HEIGHT // s)) for s in STRIDES)

    def forward(self, x: Tensor) -> Tensor:
        eighth = self.eighth(self.stem(x))
        sixteenth = self.sixteenth(eighth)
        fine, middle, coarse = (
            n(x) for n, x in zip(self.narrow, (eighth, sixteenth, self.last(sixteenth)), strict=True)
        )
        middle = middle + self.up(coarse)
        fine = self.merge(fine + self.up(middle))
        levels = zip(self.heads, (fine, middle, coarse), strict=True)
        return torch.cat([head(level) for head, level in levels], 2).transpose(1, 2)


def cells() -> tuple[Tensor, Tensor]:
    """Return (N, 2) grid positions x y and (N, 1) strides of the rows, in order."""
    grids = [
        torch.stack(torch.meshgrid(torch.arange(WIDTH // s), torch.arange(HEIGHT // s), indexing="xy"), -1)
        for s in STRIDES
    ]
    strides = [torch.full((grid.numel() // 2, 1), s) for grid, s in zip(grids, STRIDES, strict=True)]
    return torch.cat([grid.reshape(-1, 2) for grid in grids]).float(), torch.cat(strides).float()


class Camera:
    """Endless training images: random frames of many scenes, randomly framed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._scenes: dict[int, Conveyor] = {}

    def batch(self, size: int) -> Batch:
        """Return images (B, 3, H, W) float32 in 0 to 1, boxes (B, M, 4) x1 y1 x2 y2 px, classes (B, M) int64 or -1."""
        images = np.empty((size, HEIGHT, WIDTH, 3), np.uint8)
        boxes, kinds = torch.zeros(size, MOST_PARTS, 4), torch.full((size, MOST_PARTS), -1)
        for i in range(size):
            found, names = self._shoot(images[i])
            boxes[i, : len(found)], kinds[i, : len(found)] = torch.from_numpy(found), torch.from_numpy(names)
        most = max(int((kinds >= 0).sum(1).max()), 1)
        images = torch.from_numpy(images).permute(0, 3, 1, 2).float().div_(255)
        return images, boxes[:, :most], kinds[:, :most]

    def _shoot(self, out: U8) -> tuple[F32, npt.NDArray[np.int64]]:
        number = int(self._rng.integers(SCENES))
        if number not in self._scenes:
            self._scenes[number] = Conveyor(*FRAME_SIZES[number % len(FRAME_SIZES)], 30.0, FIRST_SEED + number)
        scene = self._scenes[number]
        frame = np.empty((scene.height, scene.width, 3), np.uint8)
        truth = scene.render(int(self._rng.integers(6000)), frame)
        boxes = self._place(self._disturb(frame), truth.boxes, out)
        low, high = np.maximum(boxes[:, :2], 0), np.minimum(boxes[:, 2:], (WIDTH, HEIGHT))
        shows = np.prod(np.clip(high - low, 0, None), 1) / np.prod(boxes[:, 2:] - boxes[:, :2], 1)
        kept = np.flatnonzero(shows > 0.35)[:MOST_PARTS]
        return np.concatenate((low, high), 1)[kept].astype(np.float32), truth.classes[kept].astype(np.int64)

    def _disturb(self, frame: U8) -> U8:
        """Change colors and brightness, and for half of the frames the chroma as in video."""
        gain = self._rng.uniform(0.85, 1.15) * self._rng.uniform(0.95, 1.05, 3)
        frame = np.asarray(cv2.multiply(frame, (*gain.tolist(), 1.0)), np.uint8)
        if self._rng.random() < 0.5:
            frame = cv2.cvtColor(cv2.cvtColor(frame, cv2.COLOR_BGR2YUV_I420), cv2.COLOR_YUV2BGR_I420)
        return np.asarray(frame, np.uint8)

    def _place(self, frame: U8, boxes: F32, out: U8) -> F32:
        """Letterbox ``frame`` into ``out`` as RGB, zoomed and moved; return the boxes in it."""
        height, width = frame.shape[:2]
        scale = min(WIDTH / width, HEIGHT / height) * float(self._rng.choice((1.0, self._rng.uniform(0.85, 1.2))))
        how = cv2.INTER_AREA if self._rng.random() < 0.4 else cv2.INTER_LINEAR
        small = cv2.resize(frame, (round(width * scale), round(height * scale)), interpolation=how)
        left, top = (
            round((room - used) * self._rng.uniform(0.0, 1.0))
            for room, used in ((WIDTH, small.shape[1]), (HEIGHT, small.shape[0]))
        )
        out[:] = PAD
        x1, y1, x2, y2 = max(left, 0), max(top, 0), min(left + small.shape[1], WIDTH), min(top + small.shape[0], HEIGHT)
        out[y1:y2, x1:x2] = small[y1 - top : y2 - top, x1 - left : x2 - left, ::-1]
        placed = boxes * scale + np.array((left, top, left, top), np.float32)
        return np.asarray(placed, np.float32)


class Cameras(IterableDataset[Batch]):
    """Endless batches, from a separate camera in every worker process."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        cv2.setNumThreads(1)
        camera = Camera(self.seed if worker is None else self.seed + 1000 + worker.id)
        while True:
            yield camera.batch(BATCH)


def overlaps(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return IoU and generalized IoU of boxes (..., 4) with boxes (..., 4), broadcast."""
    shared = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    around = (torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])).prod(-1).clamp(min=1e-6)
    both = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - shared
    iou = shared / both.clamp(min=1e-6)
    return iou, iou - (around - both) / around


@torch.no_grad()
def assign(boxes: Tensor, scores: Tensor, wanted: Tensor, kinds: Tensor, middles: Tensor) -> tuple[Tensor, Tensor]:
    """Return the part of each cell, (B, N) int64 or -1, and its target score, (B, N) 0 to 1.

    ``boxes`` (B, N, 4) and ``scores`` (B, N, C) are predictions, ``wanted`` (B, M, 4) and ``kinds`` (B, M) the truth,
    ``middles`` (N, 2) the cells' middles in pixels.
    """
    iou, _ = overlaps(wanted[:, :, None], boxes[:, None])
    named = scores.gather(2, kinds.clamp(min=0)[:, None].expand(-1, scores.shape[1], -1)).transpose(1, 2)
    inside = (middles > wanted[:, :, None, :2]).all(-1) & (middles < wanted[:, :, None, 2:]).all(-1)
    fit = (named.sqrt() * iou**4 + 1e-9) * (inside & (kinds >= 0)[..., None])
    best = fit.topk(9, dim=2)
    fit = torch.zeros_like(fit).scatter_(2, best.indices, best.values)
    iou = iou * (fit > 0)
    strength, part = fit.max(1)
    scale = iou.amax(2) / fit.amax(2).clamp(min=1e-12)  # the best cell of a part should call itself as good as it is
    return torch.where(strength > 0, part, -1), strength * scale.gather(1, part)


def loss(rows: Tensor, wanted: Tensor, kinds: Tensor, grid: Tensor, step: Tensor) -> Tensor:
    """Return the loss of rows (B, N, 5 + C) of logits, per positive cell."""
    center, half = (rows[..., :2] + grid) * step, rows[..., 2:4].clamp(max=4).exp() * step / 2
    boxes = torch.cat((center - half, center + half), -1)
    scores = rows[..., 4:5].sigmoid() * rows[..., 5:].sigmoid()
    part, quality = assign(boxes.detach(), scores.detach(), wanted, kinds, (grid + 0.5) * step)
    batch, cell = torch.nonzero(part >= 0, as_tuple=True)
    mine = part[batch, cell]
    belief = rows[..., 4]
    weight = torch.where(part >= 0, quality.clamp(min=0.1), 0.75 * belief.detach().sigmoid() ** 2)
    object_loss = functional.binary_cross_entropy_with_logits(belief, quality, weight, reduction="sum")
    names = functional.one_hot(kinds[batch, mine], rows.shape[2] - 5).float()
    trust = quality[batch, cell].clamp(min=0.1)
    name_loss = (
        functional.binary_cross_entropy_with_logits(rows[batch, cell, 5:], names, reduction="none").sum(1) * trust
    ).sum()
    box_loss = ((1 - overlaps(boxes[batch, cell], wanted[batch, mine])[1]) * trust).sum()
    return (object_loss + name_loss + 2.5 * box_loss) / trust.sum().clamp(min=1)


def train(options: argparse.Namespace) -> Detector:
    """Return the averaged weights after ``steps``; with ``minutes``, the cycle is shortened to end in time."""
    torch.manual_seed(options.seed)
    model = Detector(len(LABELS)).to(options.device).train()
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98), use_buffers=True
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, weight_decay=0.02)
    batches = DataLoader(Cameras(options.seed), batch_size=None, num_workers=options.workers)
    grid, step_px = (tensor.to(options.device) for tensor in cells())
    started, shown = time.monotonic(), 0.0
    for step, batch in zip(range(options.steps), batches, strict=False):
        done = max(step / options.steps, (time.monotonic() - started) / (60 * options.minutes))
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate(step, done)
        images, wanted, kinds = (tensor.to(options.device) for tensor in batch)
        cost = loss(model(images), wanted, kinds, grid, step_px)
        optimizer.zero_grad()
        cost.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        average.update_parameters(model)
        shown = float(cost.detach()) if step == 0 else 0.95 * shown + 0.05 * float(cost.detach())
        if step % 25 == 0:
            print(
                f"step {step:5d}/{options.steps}  loss {shown:.3f}  {(time.monotonic() - started) / 60:.1f} min",
                flush=True,
            )
    return cast(Detector, average.module).eval()


def rate(step: int, done: float) -> float:
    """Return the learning rate: a short rise, then a cosine down to a hundredth of PEAK at ``done`` = 1."""
    return PEAK * min(1.0, (step + 1) / 40) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


def export(model: Detector, path: Path, seed: int) -> None:
    """Write ONNX opset 17, ``images`` [1, 3, H, W] → ``rows`` [1, N, 5 + C], without traces of this machine."""
    for block in [module for module in model.modules() if isinstance(module, ConvRelu)]:
        block[0], block[1] = fuse_conv_bn_eval(block[0], block[1]), nn.Identity()
    example, names = (torch.zeros(1, 3, HEIGHT, WIDTH),), {"input_names": ["images"], "output_names": ["rows"]}
    torch.onnx.export(model, example, str(path), **names, opset_version=17, dynamo=False)
    proto = onnx.load(str(path))
    tidy(proto.graph)
    onnx.helper.set_model_props(proto, facts(seed))
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, str(path))


def facts(seed: int) -> dict[str, str]:
    """Return the metadata of the file: the input in words, and for OpenVINO's Model API and ``edgert check``."""
    return {
        "labels": ",".join(LABELS),
        "seed": str(seed),
        "recipe": RECIPE,
        "input": "RGB / 255, letterboxed, pad 114",
        "model_info mean_values": "0 0 0",
        "model_info scale_values": "255 255 255",
        "model_info reverse_input_channels": "True",  # from BGR, as OpenCV reads images
        "model_info resize_type": "fit_to_window_letterbox",
        "model_info pad_value": str(PAD),
    }


def tidy(graph: onnx.GraphProto) -> None:
    """Convert constants to initializers, and remove notes of the exporter, which name source files."""
    constants = [node for node in graph.node if node.op_type == "Constant"]
    for node in constants:
        graph.initializer.add().CopyFrom(node.attribute[0].t)
        graph.initializer[-1].name = node.output[0]
        graph.node.remove(node)
    for node in graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    graph.name, graph.doc_string = "parts", ""


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the demo's detector and write it as ONNX.")
    parser.add_argument("--out", type=Path, default=ROOT / "pipelines/assets/parts.onnx")
    parser.add_argument("--minutes", type=float, default=12.0, help="stop training after this long")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda where there is one")
    parser.add_argument("--workers", type=int, default=0, help="processes that draw images; 0: this one does")
    options = parser.parse_args()
    torch.set_num_threads(min(os.cpu_count() or 1, 2))
    model = train(options).cpu()
    print(f"trained with {time.process_time() / 60:.1f} CPU minutes")
    draft = options.out.with_suffix(".draft.onnx")
    export(model, draft, options.seed)
    score = average_precision(*compare(draft, range(30), 10))
    print(f"mAP50 {score:.4f} on 300 frames of 30 scenes it never saw")
    if score < LEAST:
        draft.unlink()
        sys.exit(f"refused: mAP50 {score:.4f} is below {LEAST}; train longer (--steps, --minutes)")
    draft.replace(options.out)
    print(f"wrote {options.out}: {options.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
