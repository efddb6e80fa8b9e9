"""``edgert import``: converts PyTorch and TensorFlow models to ONNX, and compares their outputs with the source's.

conversion.import_model("module:function", "model.onnx") → Imported     converts in a separate process
conversion.from_torch(module, example_inputs=(x,)) → LoadedEngine       converts a module in this process
"""
