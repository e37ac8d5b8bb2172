"""What a scheme costs in time and memory, measured beside the model as it comes and beside the scheme's naive form."""

from hf_posenc.bench.cells import Cell, Measured
from hf_posenc.bench.devices import device_of
from hf_posenc.bench.measuring import bench
from hf_posenc.bench.random_models import random_model

__all__ = ["Cell", "Measured", "bench", "device_of", "random_model"]
