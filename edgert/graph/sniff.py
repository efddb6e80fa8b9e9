"""What a file that is not an ONNX model looks like instead, so that the error can say so."""

from __future__ import annotations

import codecs

_LEADING = (
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x89PNG", "a PNG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF", "a PDF"),
    (b"PK\x03\x04", "a zip archive, such as a PyTorch .pt file"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"7z\xbc\xaf", "a 7-zip archive"),
    (b"\x89HDF", "an HDF5 file, such as a Keras model"),
    (b"\x80\x02", "a Python pickle, such as an old PyTorch .pth file"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
    (b"ftrt", "a TensorRT engine"),
    (b"\x7fELF", "a program or shared library"),
    (b"GGUF", "a GGUF model"),
    (b"version https://git-lfs.github.com/spec", "a Git LFS pointer"),
)
_AT_FOUR = (
    (b"ORTM", "an ONNX Runtime .ort file"),
    (b"TFL3", "a TensorFlow Lite model"),
    (b"ftyp", "an MP4 video"),
)
_ULTRALYTICS, _YOLOV5 = "a checkpoint of Ultralytics' YOLO", "a checkpoint of YOLOv5"
_CHECKPOINTS = ((b"cultralytics.", _ULTRALYTICS), (b"cmodels.yolo\n", _YOLOV5))
"""How pickles name the module of a class: the opcode GLOBAL, ``c``. PyTorch stores its pickle without compression."""
_MARKUP = ((b"<!doctype html", "a web page"), (b"<html", "a web page"), (b"<?xml", "an XML file"))

_FIXES = {
    "a Git LFS pointer": "fetch the real file: git lfs pull",
    "a TensorRT engine": "engines fit one machine only; give the ONNX file that it was built from",
    "an ONNX Runtime .ort file": "edgert reads ONNX; give the .onnx file that it was converted from",
    "a TensorFlow Lite model": "edgert import FILE -o model.onnx",
    "a web page": "download the file itself (the 'raw' link), not the page that shows it",
    _ULTRALYTICS: "where it can be loaded: yolo export model=FILE.pt format=onnx; then give the .onnx file",
    _YOLOV5: "in YOLOv5's folder: python export.py --weights FILE.pt --include onnx; then give the .onnx file",
    "a zip archive, such as a PyTorch .pt file": "edgert import FILE.pt2, or torch.onnx.export; or unpack the archive",
    "a Python pickle, such as an old PyTorch .pth file": "edgert import module:function, or torch.onnx.export",
    "an HDF5 file, such as a Keras model": "convert it to ONNX with tf2onnx",
}
DEFAULT_FIX = "give a file written by an ONNX exporter, such as torch.onnx.export"


def looks_like(data: bytes) -> str:
    """What a file looks like, ``"a JPEG image"``; an empty string when nothing is recognized. Nothing is unpickled."""
    for mark, name in _CHECKPOINTS:
        if data.startswith((b"PK\x03\x04", b"\x80")) and mark in data:
            return name
    for magic, name in _LEADING:
        if data.startswith(magic):
            return name
    for magic, name in _AT_FOUR:
        if data[4:8] == magic:
            return name
    if data[8:9] == b"{" and data[9:10] in (b'"', b"}"):
        return "a safetensors file"
    return _text(data[:512])


def fix_for(kind: str) -> str:
    """What to do about a file of that kind."""
    return _FIXES.get(kind, DEFAULT_FIX)


def _text(head: bytes) -> str:
    for mark, name in _MARKUP:
        if head.lstrip().lower().startswith(mark):
            return name
    if head and not any(head):
        return "a file of zeros"
    printable = all(byte >= 32 or byte in b"\t\n\r\f" for byte in head)
    return "a text file" if head and printable and _is_utf8(head) else ""


def _is_utf8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # incremental: the sample may end inside a character
    except UnicodeDecodeError:
        return False
    return True
