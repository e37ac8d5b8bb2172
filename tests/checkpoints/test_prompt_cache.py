"""Generation with PEFT's prompts under a scheme: the tokens of forward passes over the whole text."""

from __future__ import annotations

import peft
import pytest
import torch

from hf_posenc import patch_model
from hf_posenc.checks.tiny_models import tiny_model

NEW = 6
METHODS = {"prefix": peft.PrefixTuningConfig, "prompt": peft.PromptTuningConfig, "p-tuning": peft.PromptEncoderConfig}


@pytest.mark.parametrize("scheme", ["yarn", "alibi"])
@pytest.mark.parametrize("method", METHODS)
def test_prompts_are_put_before_a_text_once(method: str, scheme: str) -> None:
    base = patch_model(tiny_model("llama"), scheme, **({"factor": 2} if scheme == "yarn" else {}))
    base.generation_config.eos_token_id = None
    model = peft.get_peft_model(base, METHODS[method](task_type="CAUSAL_LM", num_virtual_tokens=4)).eval()
    for weight in model.prompt_encoder.parameters():
        torch.nn.init.normal_(weight)
    ids = torch.arange(3, 15)[None]
    generated = model.generate(input_ids=ids, max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    with torch.no_grad():
        for _ in range(NEW):
            ids = torch.cat([ids, model(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    assert generated.tolist() == ids.tolist()
