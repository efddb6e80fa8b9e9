"""ONNX Runtime's CPU sessions as if they were on the GPU of :class:`~tests.helpers.cuda_double.CudaDouble`.

That GPU's memory is this process's, so what is bound by address for ``cuda`` is bound for ``cpu`` instead.
"""

from __future__ import annotations

from typing import Any


class CudaLike:
    """A session that says it is on the GPU. ``broken``, once set, is what every run fails with."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.get_inputs, self.get_outputs = session.get_inputs, session.get_outputs
        self.broken: Exception | None = None
        self.runs = 0

    def run(self, names: Any, feeds: Any, options: Any = None) -> Any:
        self._check()
        return self._session.run(names, feeds, options)

    def io_binding(self) -> _Binding:
        return _Binding(self._session.io_binding())

    def run_with_iobinding(self, binding: _Binding, options: Any) -> None:
        self._check()
        assert options.get_run_config_entry("disable_synchronize_execution_providers") == "1"
        self._session.run_with_iobinding(binding.real, options)
        self.runs += 1

    def _check(self) -> None:
        if self.broken is not None:
            raise type(self.broken)(*self.broken.args)  # anew: what it holds then is this run's


class _Binding:
    def __init__(self, real: Any) -> None:
        self.real = real

    def bind_input(self, name: str, device: str, *rest: Any) -> None:
        assert device == "cuda"
        self.real.bind_input(name, "cpu", *rest)

    def bind_output(self, name: str, device: str, *rest: Any) -> None:
        assert device == "cuda"
        self.real.bind_output(name, "cpu", *rest)
