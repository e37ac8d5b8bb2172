"""``assistant_early_exit`` drafts with the first layers of a model, whose cache has no more layers than these."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from hf_posenc import patch_model
from hf_posenc.checks.tiny_models import tiny_model

NEW = 10


def whole_forwards(model: torch.nn.Module, ids: Tensor) -> Tensor:
    """Greedy tokens, each from a forward pass over all tokens before it."""
    with torch.no_grad():
        for _ in range(NEW):
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    return ids


def four_layers() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = copy.deepcopy(tiny_model("llama").config)
    config.num_hidden_layers = 4
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("scheme", ["yarn", "alibi", "dynamic_ntk", "sinks", "fox"])
def test_drafts_of_the_first_layer_change_no_token(scheme: str) -> None:
    model = tiny_model("llama")
    layers = model.config.num_hidden_layers
    model.generation_config.eos_token_id = None
    patch_model(model, scheme, factor=2) if scheme in ("yarn", "dynamic_ntk") else patch_model(model, scheme)
    ids = torch.randint(3, 96, (1, 12), generator=torch.Generator().manual_seed(3))
    drafted = model.generate(ids, max_new_tokens=NEW, do_sample=False, assistant_early_exit=1)
    assert drafted.tolist() == whole_forwards(model, ids).tolist()
    assert model.config.num_hidden_layers == layers  # transformers leaves it lowered where drafting raises
