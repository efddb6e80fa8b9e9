"""Models in reduced precision: measured ranges, INT8 and FP16 models, and their accuracy against the float model.

calibrated.calibrate_section(config) -> CalibratedModel             ranges of a section's model, from its images
int8_model.quantize_section(config, ...) -> QuantizationResult      the INT8 model, within its accuracy budget
precision.in_precision(config) -> model                             what a pipeline runs, cached

Read to_files and evaluate first. Then precision, conversion and variants, which make the forms of a model. Then
int8_model, recovery and evaluator, which hold a model to its budget; quantizer and calibrated last.

calibration/ counts values and chooses thresholds. scheme/ decides what becomes INT8 and what shares a scale. lowering/
writes this into a graph, for each engine. quantization_error, equalization and adaround recover accuracy, in the order
of recovery. fp16/ converts to float16; describe makes reports.
"""
