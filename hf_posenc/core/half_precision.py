"""The data types of half precision."""

from __future__ import annotations

import torch

HALF = (torch.float16, torch.bfloat16)
