"""``edgert import``: a model of PyTorch or TensorFlow as an ONNX file that was seen to compute the same.

conversion.import_model("module:function", "model.onnx") → Imported     in a process of its own, then compared
from_torch.from_torch(module, example_inputs=(x,)) → LoadedEngine       the same for a module in this process
"""
