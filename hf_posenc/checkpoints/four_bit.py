"""Load a base model with weights in 4 bits, as QLoRA trains adapters on it (Dettmers et al. 2023, arXiv:2305.14314)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from hf_posenc.errors import MissingPackage


def four_bit_keywords() -> dict[str, Any]:
    """Keywords of ``from_pretrained`` that quantise linear layers: NF4, constants quantised too, bfloat16 computation.

    Raises:
        MissingPackage: bitsandbytes is not installed.
    """
    if find_spec("bitsandbytes") is None:
        raise MissingPackage(
            "Weights in 4 bits need bitsandbytes, which is not installed. Run: pip install bitsandbytes"
        )
    from transformers import BitsAndBytesConfig

    quantised = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )  # fmt: skip
    return {"quantization_config": quantised, "dtype": torch.bfloat16}


def is_quantised(model: nn.Module) -> bool:
    """Whether weights of a model are integers, whichever library packed them; torchao's say that they are floating."""
    return getattr(model, "is_quantized", False) or any(not weight.is_floating_point() for weight in model.parameters())
