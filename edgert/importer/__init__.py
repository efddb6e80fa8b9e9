"""``edgert import``: a model of PyTorch or TensorFlow as an ONNX file that was seen to compute the same.

import_model("module:function", Path("model.onnx")) → Imported      converted in a process of its own, then compared
from_torch.from_torch(module, example_inputs=(x,)) → LoadedEngine   the same from Python, ready to run
"""
