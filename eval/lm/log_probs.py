"""Log-probabilities of chosen tokens: the language-modelling head runs on the scored positions only.

    score(t) = log softmax(head(h_{t−1}))[t]        in float32, in whatever precision the model computes

A 128k vocabulary at 32k tokens would be 17 GB of float32 logits; a task that scores five tokens needs 2.5 MB of them.
If many positions are scored, the head runs on slices of them, so that at most `HELD` logits exist at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.eval.errors import NotANumber

HELD = 1 << 20
"""Most logits that are held at a time on a CPU, 4 MB in float32."""
HELD_ON_DEVICE = 1 << 26
"""Most logits that are held at a time on a GPU, 256 MB: each slice loads the head's weights, so slices are large."""
WHOLE = 1 << 24
"""Most logits for which a whole text goes through the head, 64 MB: its scores then equal lm-eval's to the last bit."""

Head = Callable[[Tensor], Tensor]


def suffix_states(model: nn.Module, input_ids: Tensor, keep: int) -> tuple[Tensor, Head]:
    """States of the last ``keep`` positions of ``input_ids [batch, token]``, and the function from states to logits.

    For few positions, and for short texts, the states are logits and the function is the identity. For many positions
    they are hidden states ``[batch, keep, width]``, and the function is the model's head.
    """
    if input_ids.numel() * vocabulary(model) <= WHOLE:
        return model(input_ids=input_ids).logits[:, -keep:], nn.Identity()
    head = None
    if len(input_ids) * keep * vocabulary(model) > logits_at_once(input_ids.device):
        head = plain_head(model, input_ids[:1, :8])
    if head is not None:
        return unwrapped(model).base_model(input_ids=input_ids).last_hidden_state[:, -keep:], head
    if "logits_to_keep" in inspect.signature(unwrapped(model).forward).parameters:
        return model(input_ids=input_ids, logits_to_keep=keep).logits, nn.Identity()
    return chosen_logits(model, input_ids, torch.arange(-keep, 0)), nn.Identity()


def chosen_logits(model: nn.Module, input_ids: Tensor, positions: Tensor) -> Tensor:
    """Logits of ``positions`` in every text of ``input_ids [batch, token]``: ``[batch, position, vocabulary]``."""
    inner = unwrapped(model)
    head: Head | None = getattr(inner, "cls", None)  # BERT's head, which takes hidden states
    if head is None:
        return model(input_ids=input_ids).logits[:, positions]
    hidden = inner.base_model(input_ids=input_ids).last_hidden_state  # LoRA layers sit inside, so this runs them
    return head(hidden[:, positions])


def token_scores(states: Tensor, tokens: Tensor, head: Head | None = None) -> tuple[Tensor, Tensor]:
    """Log-probability of each token, and whether it is the argmax.

    Args:
        states: logits ``[position, vocabulary]``, or hidden states ``[position, width]`` for the ``head``.
        tokens: ``[position]``.
        head: maps hidden states to logits; applied to one slice of the states at a time.
    """
    scores = torch.empty(tokens.shape, dtype=torch.float32, device=states.device)
    greedy = torch.empty(tokens.shape, dtype=torch.bool, device=states.device)
    first = states[:1] if head is None else head(states[:1])
    rows = max(1, logits_at_once(states.device) // first.shape[-1])
    for start in range(0, len(tokens), rows):  # a small tensor that outlived its slice would pin freed heap memory
        part = slice(start, start + rows)
        logits = states[part] if head is None else head(states[part])
        greedy[part] = logits.argmax(-1) == tokens[part]
        scores[part] = logits.log_softmax(-1, dtype=torch.float32).gather(-1, tokens[part, None])[:, 0]
    if not scores.isfinite().all():
        raise NotANumber(
            f"The log-probability of a token came out as {float(scores[~scores.isfinite()][0])}. Check the "
            "weights, or compute in float32."
        )
    return scores, greedy


def plain_head(model: nn.Module, input_ids: Tensor) -> Head | None:
    """The output embedding, if the model's logits are this layer's output for the last hidden states; else None.

    Both are compared on ``input_ids``: they differ if logits are capped or scaled, or if PEFT prepends prompts.
    """
    inner = unwrapped(model)
    head = inner.get_output_embeddings()
    if head is None or inner.base_model is inner:
        return None
    logits = head(inner.base_model(input_ids=input_ids).last_hidden_state)
    return head if torch.equal(logits, model(input_ids=input_ids).logits) else None


def logits_at_once(device: torch.device) -> int:
    """Most logits that are held at a time on a device."""
    return HELD if device.type == "cpu" else HELD_ON_DEVICE


def vocabulary(model: nn.Module) -> int:
    """Size of the vocabulary."""
    config = unwrapped(model).config
    return getattr(config.get_text_config(), "vocab_size", 1)


def unwrapped(model: Any) -> Any:
    """The transformers model inside a PEFT wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
