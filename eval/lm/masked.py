"""Log-probabilities of masked tokens under a masked language model.

    score(t_i) = log softmax(head(h_i))[t_i]

All chosen i are masked at once: one forward pass, and the head runs on them alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hf_posenc.eval.lm.log_probs import chosen_logits, token_scores

MASKED_SHARE = 0.15
"""Of the scored tokens, as in Devlin et al. 2018, arXiv:1810.04805."""


def masked_scores(
    model: nn.Module, ids: Sequence[int], positions: Sequence[int], mask_id: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Log-probability of the tokens at ``positions`` when all of them are masked, and whether each is the argmax."""
    row = torch.tensor([list(ids)], device=device)
    chosen = torch.tensor(list(positions), device=device)
    hidden = row.clone()
    hidden[0, chosen] = mask_id
    return token_scores(chosen_logits(model, hidden, chosen)[0], row[0, chosen])


def masked_choice(scored: int, rng: random.Random) -> list[int]:
    """Which of the last ``scored`` tokens to mask, as distances from the end of the text, nearest last."""
    count = max(1, round(MASKED_SHARE * scored))
    return sorted(rng.sample(range(1, scored + 1), count), reverse=True)
