"""The only package that uses TensorRT: 8.6 to 10.x (weakly typed), 11.x (strongly typed) and TensorRT-RTX.

    build_request.request_of(model, …) → build_process.build(request) → BuildResult     in a separate process
    trt_engine.TrtEngine(plan, …) ── .session() ── .run()

TensorRT is imported when it is first needed. Numbers of enumerations are never stored, as 11.0 changed them. A test
checks that each name used here exists in every version of TensorRT: they are listed in ``tests/data/trt_api``.
"""
