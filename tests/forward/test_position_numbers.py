"""Numbers that callers give to positions, of models that number their own from behind the rows for padding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, RobertaConfig, RobertaForCausalLM, RobertaForMaskedLM
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings

from hf_posenc import patch_model
from hf_posenc.errors import InvalidInput

PAD, FIRST = 1, 2
SCHEMES = ["host", "rope", "sinusoidal", "logn", "alibi"]  # three read where a token is, not only how far another
CLOSE = 1e-4


def model(scheme: str, *, decoder: bool = False) -> RobertaForMaskedLM | RobertaForCausalLM:
    """A tiny RoBERTa in which position counts."""
    config = RobertaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=64,
        max_position_embeddings=40, pad_token_id=PAD, is_decoder=decoder, use_cache=decoder, eos_token_id=None,
    )  # fmt: skip
    made = (RobertaForCausalLM if decoder else RobertaForMaskedLM)(config).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "position" in name or "query" in name or "key" in name:
                weight.normal_(std=0.5)
    return patch_model(made, scheme)


def text(length: int = 12) -> Tensor:
    return torch.randint(3, 64, (2, length))


def padded() -> tuple[Tensor, Tensor]:
    """A text with padding on the left of its second row, and its mask."""
    ids = text()
    ids[1, :4] = PAD
    return ids, (ids != PAD).long()


@pytest.mark.parametrize("scheme", SCHEMES)
@torch.no_grad()
def test_counted_from_zero_or_as_the_model_counts(scheme: str) -> None:
    encoder, (ids, mask) = model(scheme), padded()
    own = RobertaEmbeddings.create_position_ids_from_input_ids(ids, PAD)
    from_zero = (mask.cumsum(-1) - 1).clamp(min=0)
    wanted = encoder(ids, attention_mask=mask).logits
    for numbers in (own, from_zero, mask.cumsum(-1) - 1):
        torch.testing.assert_close(encoder(ids, attention_mask=mask, position_ids=numbers).logits, wanted)
    whole = text()
    numbers = torch.arange(whole.shape[1])[None]
    for given in (numbers, numbers + FIRST, numbers.to(torch.uint8)):
        torch.testing.assert_close(encoder(whole, position_ids=given).logits, encoder(whole).logits)


@pytest.mark.parametrize("cache", ["dynamic", "static", None])
@pytest.mark.parametrize("scheme", SCHEMES)
@torch.no_grad()
def test_generate_reads_what_one_pass_reads(scheme: str, cache: str | None) -> None:
    """``generate`` numbers from 0, behind padding as well; the unpatched model itself does not pass this."""
    decoder, (ids, mask) = model(scheme, decoder=True), padded()
    implementation = {"cache_implementation": cache} if cache else {"use_cache": False}
    found = decoder.generate(
        ids, attention_mask=mask, max_new_tokens=4, min_new_tokens=4, do_sample=False,
        output_logits=True, return_dict_in_generate=True, disable_compile=True, **implementation,
    )  # fmt: skip
    mask = torch.cat((mask, torch.ones(2, 4, dtype=torch.long)), 1)
    wanted = decoder(found.sequences, attention_mask=mask, use_cache=False).logits[:, -5:-1]
    torch.testing.assert_close(torch.stack(found.logits, 1), wanted, atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("before", ["none", "from 0", "from 2"])
@pytest.mark.parametrize("after", ["none", "from 0", "from 2"])
@torch.no_grad()
def test_behind_cached_tokens(before: str, after: str) -> None:
    """The numbers of later tokens mean what those before them meant."""
    if {before, after} == {"from 0", "from 2"}:
        pytest.skip("no caller changes from one to the other")
    decoder, ids = model("sinusoidal", decoder=True), text()
    numbers = torch.tensor([[*range(6), *range(9, 15)]]) if "none" not in (before, after) else torch.arange(12)[None]
    given = {"none": None, "from 0": numbers, "from 2": numbers + FIRST}
    one_text = torch.ones_like(ids)  # else a gap would be the border of two, where nothing is cached
    wanted = decoder(ids, attention_mask=one_text, position_ids=numbers, use_cache=False).logits
    cache = DynamicCache(config=decoder.config)
    parts = []
    for start, end, how in ((0, 6, before), (6, 7, after), (7, 12, after)):
        own = None if given[how] is None else given[how][:, start:end]
        parts.append(decoder(ids[:, start:end], past_key_values=cache, position_ids=own).logits)
    torch.testing.assert_close(torch.cat(parts, 1), wanted, atol=CLOSE, rtol=CLOSE)


def test_padding_that_no_mask_hides_is_refused() -> None:
    """It would be attended to, at a position that it does not have."""
    encoder, (ids, _) = model("rope"), padded()
    own = RobertaEmbeddings.create_position_ids_from_input_ids(ids, PAD)
    with pytest.raises(InvalidInput, match=r"the position 1, .* begin at 2"):
        encoder(ids, position_ids=own)
