"""Log-probabilities of chosen tokens: the language-modelling head runs on the scored positions only.

    score(t) = log softmax(head(h_{t−1}))[t]        in float32, whatever the model computes in

A 128k vocabulary at 32k tokens would be 17 GB of float32 logits; a task that scores five tokens needs 2.5 MB of them.
Where many are scored the head runs on a slice of them at a time, so that no more than `HELD` logits are ever held.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.eval.errors import NotANumber

HELD = 1 << 20
"""Logits held at a time where many are scored, 4 MB in float32."""
HELD_ON_DEVICE = 1 << 26
"""The same on a GPU, 256 MB: there the head's weights are loaded again for each slice, so slices are large."""
WHOLE = 1 << 24
"""Logits up to which whole texts go through the head, 64 MB: then they equal lm-eval's to the last bit."""

Head = Callable[[Tensor], Tensor]


def suffix_states(model: nn.Module, input_ids: Tensor, keep: int) -> tuple[Tensor, Head]:
    """Final states of the last ``keep`` positions of ``input_ids [batch, token]``, and their map to logits.

    For few positions, and for short texts, the states are logits already; for many they are hidden states
    ``[batch, keep, width]`` with the model's head.
    """
    if input_ids.numel() * vocabulary(model) <= WHOLE:
        return model(input_ids=input_ids).logits[:, -keep:], nn.Identity()
    head = None
    if len(input_ids) * keep * vocabulary(model) > logits_at_once(input_ids.device):
        head = plain_head(model, input_ids[:1, :8])
    if head is None:
        return suffix_logits(model, input_ids, keep), nn.Identity()
    return unwrapped(model).base_model(input_ids=input_ids).last_hidden_state[:, -keep:], head


def suffix_logits(model: nn.Module, input_ids: Tensor, keep: int) -> Tensor:
    """Logits of the last ``keep`` positions of ``input_ids [batch, token]``: ``[batch, keep, vocabulary]``."""
    if "logits_to_keep" in inspect.signature(unwrapped(model).forward).parameters:
        return model(input_ids=input_ids, logits_to_keep=keep).logits
    return chosen_logits(model, input_ids, torch.arange(-keep, 0))


def chosen_logits(model: nn.Module, input_ids: Tensor, positions: Tensor) -> Tensor:
    """Logits of ``positions`` in every text of ``input_ids [batch, token]``: ``[batch, position, vocabulary]``."""
    inner = unwrapped(model)
    head = prediction_head(inner)
    if head is None:
        return model(input_ids=input_ids).logits[:, positions]
    hidden = inner.base_model(input_ids=input_ids).last_hidden_state  # LoRA layers sit inside, so this runs them
    return head(hidden[:, positions])


def token_scores(states: Tensor, tokens: Tensor, head: Head | None = None) -> tuple[Tensor, Tensor]:
    """Log-probability of each token, and whether it is the argmax.

    Args:
        states: logits ``[position, vocabulary]``, or what ``head`` makes them of, ``[position, width]``.
        tokens: ``[position]``.
        head: applied to a slice of the states at a time.
    """
    scores = torch.empty(tokens.shape, dtype=torch.float32, device=states.device)
    greedy = torch.empty(tokens.shape, dtype=torch.bool, device=states.device)
    first = states[:1] if head is None else head(states[:1])
    rows = max(1, logits_at_once(states.device) // first.shape[-1])
    for start in range(0, len(tokens), rows):  # nothing small outlives a slice, or it would pin the heap behind it
        some = slice(start, start + rows)
        logits = states[some] if head is None else head(states[some])
        greedy[some] = logits.argmax(-1) == tokens[some]
        scores[some] = logits.log_softmax(-1, dtype=torch.float32).gather(-1, tokens[some, None])[:, 0]
    if not scores.isfinite().all():
        raise NotANumber(
            f"The log-probability of a token came out as {float(scores[~scores.isfinite()][0])}. Check the "
            "weights, or compute in float32."
        )
    return scores, greedy


def plain_head(model: nn.Module, input_ids: Tensor) -> Head | None:
    """The output embedding, if the model's logits are that of its last hidden states and nothing else.

    Tried on ``input_ids``: the comparison fails where logits are capped or scaled, or PEFT prepends prompts.
    """
    inner = unwrapped(model)
    head = inner.get_output_embeddings()
    if head is None or inner.base_model is inner:
        return None
    made = head(inner.base_model(input_ids=input_ids).last_hidden_state)
    return head if torch.equal(made, model(input_ids=input_ids).logits) else None


def logits_at_once(device: torch.device) -> int:
    """Logits held at a time."""
    return HELD if device.type == "cpu" else HELD_ON_DEVICE


def vocabulary(model: nn.Module) -> int:
    """Columns of the logits."""
    config = unwrapped(model).config
    return getattr(config.get_text_config(), "vocab_size", 1)


def unwrapped(model: Any) -> Any:
    """The transformers model inside a PEFT wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def prediction_head(model: Any) -> Head | None:
    """BERT's head, which sits in ``cls`` and takes hidden states; None where the model has none."""
    return getattr(model, "cls", None)
