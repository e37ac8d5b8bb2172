"""Benchmark: time and memory of schemes, relative to the unpatched model and to a naive implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_posenc.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hf_posenc.insight.bench.devices import device_of as device_of
    from hf_posenc.insight.bench.models import random_model as random_model
    from hf_posenc.insight.bench.results import BenchCell as BenchCell
    from hf_posenc.insight.bench.results import Measured as Measured
    from hf_posenc.insight.bench.run import bench as bench

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "hf_posenc.insight.bench.results": ("BenchCell", "Measured"),
        "hf_posenc.insight.bench.devices": ("device_of",),
        "hf_posenc.insight.bench.models": ("random_model",),
        "hf_posenc.insight.bench.run": ("bench",),
    },
)
