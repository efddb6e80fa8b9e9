"""Models in reduced precision: ranges measured, INT8 and FP16 models made, accuracy held against the float model.

calibrated.calibrate_section(config) -> Calibrated                  ranges of a section's model, from its images
int8_model.quantize_section(config, ...) -> QuantizationResult      the INT8 model, within its accuracy budget
precision.in_precision(config) -> model                             what a pipeline runs, cached

Read to_files and evaluate first. Then precision, conversion and variants, which make the forms of a model. Then
int8_model, recovery and evaluator, which hold a model to its budget; quantizer and calibrated last.

calibration/ counts values and chooses thresholds. scheme/ decides what becomes INT8 and what shares a scale. lowering/
writes that into a graph, for each engine. quantization_error, equalization, adaround and mixed_precision recover
accuracy, in the order of recovery. fp16/ converts to float16; describe makes reports.
"""
