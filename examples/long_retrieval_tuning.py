"""Train a patched encoder to imitate the hidden states of the unpatched one; this needs no labels.

    teacher    [CLS] chunk₁ [SEP] · [CLS] chunk₂ [SEP] · …        each chunk fits its position table
    student    [CLS] chunk₁ chunk₂ … [SEP]                        all chunks as one text
    loss       mean over tokens of ‖student − teacher‖² / ‖teacher‖²

Training starts with short rows, goes on with rows as long as the table, and ends with rows of four such chunks. All
steps have about the same number of tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from training_state import load_state, save_state

STAGES = ((0.6, 16, 1, 126), (0.85, 4, 1, 510), (1.0, 1, 4, 510))
"""End of each stage as a share of the steps, rows, chunks in a row, and tokens in a chunk."""
PEAK, WARM_UP, SAVE_EVERY = 5e-4, 0.1, 10


def tuned(student: Any, teacher: Any, tokenizer: Any, texts: Sequence[str], steps: int, file: Path) -> None:
    """Train ``student`` in place; if ``file`` exists, resume from it.

    Args:
        student: a patched encoder.
        teacher: the same encoder, unpatched.
        tokenizer: tokenizer of both.
        texts: texts from which rows are drawn.
        steps: total number of steps.
        file: file for the state of the training.
    """
    ids = [torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) for text in texts]
    student.get_input_embeddings().requires_grad_(False)  # token embeddings do not depend on positions
    optimizer = torch.optim.AdamW([one for one in student.parameters() if one.requires_grad], lr=PEAK)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK, total_steps=steps, pct_start=WARM_UP)
    done = load_state(file, student, [optimizer]) if file.exists() else 0
    for step in range(steps):
        if step >= done:
            chunks = drawn(ids, step / steps, random.Random(f"tuning-{step}"))
            value = loss(student, teacher, chunks, tokenizer)
            value.backward()
            torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            print(f"tuning: step {step + 1} of {steps}, loss {value.item():.3f}", flush=True)
        schedule.step()
        if step >= done and (step + 1 == steps or (step + 1) % SAVE_EVERY == 0):
            save_state(file, student, [optimizer], step + 1)


def drawn(ids: Sequence[Tensor], share: float, rng: random.Random) -> Tensor:
    """Draw the tokens of a step, ``[row, chunk, token]``, at a share of the training."""
    rows, chunks, size = next(stage[1:] for stage in STAGES if share < stage[0])
    drawn_rows = []
    for _ in range(rows):
        text = rng.choice(ids)
        start = rng.randrange(len(text) - chunks * size)
        drawn_rows.append(text[start : start + chunks * size])
    return torch.stack(drawn_rows).view(rows, chunks, size)


def loss(student: Any, teacher: Any, chunks: Tensor, tokenizer: Any) -> Tensor:
    """Squared error of the student's states on ``chunks [row, chunk, token]``, relative to the teacher's states."""
    with torch.no_grad():
        targets = states(teacher, chunks.flatten(0, 1), tokenizer).reshape(*chunks.flatten(1).shape, -1)
    errors = (states(student, chunks.flatten(1), tokenizer) - targets).square().sum(-1)
    return (errors / targets.square().sum(-1)).mean()


def states(model: Any, rows: Tensor, tokenizer: Any) -> Tensor:
    """Last hidden states of ``rows [row, token]``, which are read between the model's special tokens."""
    first, last = (torch.full((len(rows), 1), token) for token in (tokenizer.cls_token_id, tokenizer.sep_token_id))
    return model(torch.cat((first, rows, last), 1)).last_hidden_state[:, 1:-1]
