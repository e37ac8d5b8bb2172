"""A safe ``--use_cache`` for lm-eval: one table of responses per model and setting.

lm-eval keys an answer by the request alone. One file used under two schemes would answer the second with the numbers
of the first. The table's name is a digest of all that an answer depends on.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

from hf_posenc.eval.lm.log_probs import unwrapped

SAMPLED = 64
"""Numbers of each parameter that the digest looks at, spread evenly."""


def separate(answers: Any, digest: str) -> None:
    """Move an open `SqliteDict` to the table of ``digest``."""
    answers.tablename = f"posenc_{digest}"
    answers.conn.execute(f'CREATE TABLE IF NOT EXISTS "{answers.tablename}" (key TEXT PRIMARY KEY, value BLOB)')
    answers.commit()


def lm_digest(lm: Any) -> str:
    """Digest of model, scheme, lengths, tokenizer and settings."""
    inner = unwrapped(lm.model)
    settings = {
        "type": type(lm).__name__,
        "info": lm.get_model_info(),
        "config": inner.config.to_dict(),
        "overflow": lm.on_overflow,
        "bos": [lm.add_bos_token, lm.custom_prefix_token_id],
        "dtypes": [str(lm.softmax_dtype), str(lm.mixed_precision_dtype)],
        "think": [lm.think_end_token, lm.enable_thinking],
        "vocabulary": sorted(lm.tokenizer.get_vocab().items()),
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, parameter in lm.model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)}".encode())
        digest.update(sampled(parameter.detach()).encode())
    return digest.hexdigest()[:24]


def sampled(parameter: torch.Tensor) -> str:
    """Some of a parameter's numbers; "meta" where they are not at hand."""
    if parameter.is_meta:
        return "meta"
    flat = parameter.reshape(-1)
    return str(flat[:: max(1, flat.numel() // SAMPLED)].float().tolist())
