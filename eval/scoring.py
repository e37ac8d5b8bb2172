"""Log-probabilities of chosen tokens, and of no others: the head runs on the scored positions only.

    score(t) = log softmax(head(h_{t−1}))[t]        in float32, whatever the model computes in

A 128k vocabulary at 32k tokens would be 17 GB of float32 logits; a task that scores five tokens needs 2.5 MB of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

ROWS = 1024
"""Rows whose float32 log-softmax is held at a time."""


def suffix_logits(model: nn.Module, input_ids: Tensor, keep: int) -> Tensor:
    """Logits of the last ``keep`` positions of ``input_ids [batch, token]``: ``[batch, keep, vocabulary]``."""
    if "logits_to_keep" in inspect.signature(unwrapped(model).forward).parameters:
        return model(input_ids=input_ids, logits_to_keep=keep).logits
    return chosen_logits(model, input_ids, torch.arange(-keep, 0))


def chosen_logits(model: nn.Module, input_ids: Tensor, positions: Tensor) -> Tensor:
    """Logits of ``positions`` in every row of ``input_ids [batch, token]``: ``[batch, position, vocabulary]``."""
    host = unwrapped(model)
    head = prediction_head(host)
    if head is None:
        return model(input_ids=input_ids).logits[:, positions]
    hidden = host.base_model(input_ids=input_ids).last_hidden_state  # LoRA layers sit inside, so the host carries them
    return head(hidden[:, positions])


def token_scores(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of ``tokens [position]`` under ``logits [position, vocabulary]``; whether each is the argmax."""
    scores, greedy = [], []
    for rows, wanted in zip(logits.split(ROWS), tokens.split(ROWS), strict=True):
        scores.append(rows.log_softmax(-1, dtype=torch.float32).gather(-1, wanted[:, None])[:, 0])
        greedy.append(rows.argmax(-1) == wanted)
    return torch.cat(scores), torch.cat(greedy)


def unwrapped(model: Any) -> Any:
    """The transformers model inside a PEFT wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def prediction_head(host: Any) -> Callable[[Tensor], Tensor] | None:
    """BERT's head, which sits in ``cls`` and takes hidden states; None where the host has no such part."""
    return getattr(host, "cls", None)
