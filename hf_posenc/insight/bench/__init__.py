"""Benchmark: time and memory of schemes, relative to the unpatched model."""

from hf_posenc.insight.bench.devices import device_of
from hf_posenc.insight.bench.models import random_model
from hf_posenc.insight.bench.results import BenchCell, Measured
from hf_posenc.insight.bench.run import BenchSettings, bench

__all__ = ["BenchCell", "BenchSettings", "Measured", "bench", "device_of", "random_model"]
