"""What a scheme costs in time and memory, measured beside the model as it comes and beside the scheme's naive form."""

from hf_posenc.insight.bench.cell import Cell, Measured
from hf_posenc.insight.bench.devices import device_of
from hf_posenc.insight.bench.random_models import random_model
from hf_posenc.insight.bench.run import bench

__all__ = ["Cell", "Measured", "bench", "device_of", "random_model"]
