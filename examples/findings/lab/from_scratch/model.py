"""A tiny GPT-2 under a positional scheme, with the same initial weights for every scheme."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from hf_posenc.errors import OptionOutOfRange
from hf_posenc.patching.patch import patch_model
from hf_posenc.schemes.entry import Entry
from lab.from_scratch.task import Task

HEADS = 4


def tiny_model(task: Task, entry: Entry, seed: int) -> PreTrainedModel:
    """Build a GPT-2 for a task, with random weights, and patch it.

    All weights that GPT-2 has of its own are drawn before the scheme is known; schemes with parameters add theirs. The
    scheme is given the longest length that will be measured, where it can reach beyond the trained one.

    Raises:
        PosEncError: the scheme, or one of its options, is refused.
    """
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=task.vocabulary, n_embd=task.budget.width, n_layer=task.budget.layers, n_head=HEADS,
            n_positions=task.longest, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
            use_cache=False,
        )
    )  # fmt: skip
    model.loss_type = "ForCausalLM"  # transformers would choose it too, with a warning
    if entry.scheme is None:
        return model
    try:
        return patch_model(model, entry.scheme, target_length=task.longest_asked, **entry.options)
    except OptionOutOfRange:  # the scheme ends with the trained length, or an option is wrong and refused again
        return patch_model(model, entry.scheme, **entry.options)
