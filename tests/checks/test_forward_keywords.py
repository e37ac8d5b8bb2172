"""Keywords of a forward call: those that could change attention are supported or refused, harmless ones accepted."""

from __future__ import annotations

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils.generic import TransformersKwargs

from hf_posenc import patch_model
from hf_posenc.checks.forward import forward, random_tokens
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import MaskMismatch, UnknownKeyword

PAIRS = [
    *[("llama", "alibi"), ("llama", "rerope"), ("gpt2", "t5"), ("bert_decoder", "shaw")],  # computed by the engine
    *[("llama", "yarn"), ("gpt2", "none")],  # and by the model's own attention function
]
BORDERS = torch.tensor([0, 5, 12], dtype=torch.int32)


def patched(family: str, scheme: str) -> PreTrainedModel:
    return patch_model(tiny_model(family), scheme, factor=4)


@pytest.mark.parametrize(("family", "scheme"), PAIRS)
def test_harmless_keywords_change_nothing(family: str, scheme: str) -> None:
    model = patched(family, scheme)
    tokens = random_tokens(model, 12)
    before = forward(model, tokens)
    harmless = {
        "num_items_in_batch": torch.tensor(12), "output_hidden_states": True, "is_causal": True,
        "cu_seq_lens_q": BORDERS[[0, 2]], "cu_seq_lens_k": BORDERS[[0, 2]], "max_length_q": 12, "max_length_k": 12,
        "sliding_window": None, "softcap": None,
    }  # fmt: skip
    for name, value in harmless.items():
        assert torch.equal(forward(model, tokens, **{name: value}), before), name


@pytest.mark.parametrize(("family", "scheme"), PAIRS)
@pytest.mark.parametrize(
    ("name", "value"),
    [("is_causal", False), *((name, 4.0) for name in ("softcap", "sliding_window", "s_aux", "position_bias", "new"))],
)
def test_unknown_keywords_are_refused(family: str, scheme: str, name: str, value: object) -> None:
    model = patched(family, scheme)
    with pytest.raises(UnknownKeyword, match=f"called with {name}={value}"):
        forward(model, random_tokens(model, 12), **{name: value})


def test_every_keyword_of_transformers_is_covered() -> None:
    """Every keyword of transformers' own list is supported or refused."""
    model = patched("llama", "alibi")
    tokens = random_tokens(model, 12)
    known = {"num_items_in_batch", "output_hidden_states", "output_attentions", "output_router_logits", "position_ids"}
    known |= {"max_length_q", "max_length_k"}
    for name in set(TransformersKwargs.__annotations__) - known:
        with pytest.raises((UnknownKeyword, MaskMismatch)):
            forward(model, tokens, **{name: {"cu": BORDERS, "se": torch.arange(12)[None]}.get(name[:2], False)})


def test_an_attention_function_of_ones_own_gets_all_keywords() -> None:
    """Schemes that only rotate use it, and what it reads nobody else knows."""
    seen: dict[str, object] = {}

    def own(*args: object, something_new: object = None, **kwargs: object) -> object:
        seen["something_new"] = something_new
        return sdpa_attention_forward(*args, **kwargs)

    AttentionInterface.register("own_attention", own)
    AttentionMaskInterface.register("own_attention", sdpa_mask)
    model = patched("llama", "yarn")
    tokens = random_tokens(model, 12)
    expected = forward(model, tokens)
    with pytest.raises(UnknownKeyword, match="something_new=1"):
        forward(model, tokens, something_new=1)
    model.set_attn_implementation("own_attention")
    torch.testing.assert_close(forward(model, tokens, something_new=1), expected)
    assert seen == {"something_new": 1}
