"""Variants of a benchmark: shared weights, equal functions."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

from hf_posenc import is_patched
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.bench.cases import Decode, Train
from hf_posenc.insight.bench.models import PATCHED, UNPATCHED, random_model, variant
from hf_posenc.schemes.entry import Entry, entries_of

TRAINED, LENGTH = 32, 100


def made(kind: str = "llama") -> PreTrainedModel:
    """Sharp enough that positions show."""
    if kind == "llama":
        model = random_model((2, 64, 4, 2), TRAINED, torch.float32)
    else:
        config = AutoConfig.for_model(
            kind, num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=256, vocab_size=1024,
            max_position_embeddings=TRAINED,
        )  # fmt: skip
        model = (AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM).from_config(config).eval()
    for name, weight in model.named_parameters():
        if any(part in name for part in ("q_proj", "k_proj", "c_attn.weight", "query.weight", "key.weight")):
            weight.data *= 10
    return model


def tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(0, 1024, (1, length), generator=torch.Generator().manual_seed(1))


def entry(scheme: str) -> Entry:
    return entries_of(scheme)[0]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_the_unpatched_variant_is_the_model_and_runs_beyond_its_table(kind: str) -> None:
    model = made(kind)
    same = variant(model, UNPATCHED, entry("alibi"), LENGTH, 8 * TRAINED)
    ids = tokens()
    with torch.no_grad():
        short = ids[:, :TRAINED]
        torch.testing.assert_close(same(short).logits, model(short).logits, rtol=0, atol=1e-6)
        assert same(ids).logits.isfinite().all()
    assert model.config.max_position_embeddings == TRAINED


@pytest.mark.parametrize(("kind", "role"), [("gpt2", UNPATCHED), ("llama", PATCHED), ("bert", PATCHED)])
def test_weights_are_shared_and_gradients_are_not(kind: str, role: str) -> None:
    model = made(kind)
    other = variant(model, role, entry("alibi"), LENGTH, 8 * TRAINED)
    mine = {p.data_ptr() for p in model.parameters()}
    own = [p for name, p in other.named_parameters() if p.data_ptr() not in mine]
    assert sum(p.numel() for p in own) <= LENGTH * 64  # a longer table at most
    Train(other, tokens()).call()
    assert any(p.grad is not None for p in other.parameters())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not is_patched(model)


@pytest.mark.parametrize("scheme", ["self_extend", "sinks"])
def test_decoding_is_one_forward_pass(scheme: str) -> None:
    other, ids = variant(made(), PATCHED, entry(scheme), LENGTH, 8 * TRAINED), tokens()
    decode = Decode(other, ids)
    for _ in range(2):  # a cache that a step has written to must go on telling the truth
        decode.reset()
        decode.call()
    with torch.inference_mode():
        logits = other(decode.token, past_key_values=decode.cache, use_cache=True).logits
        whole = other(torch.cat((ids, *[decode.token] * 3), dim=1), use_cache=False).logits[:, -1:]
    torch.testing.assert_close(logits, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scheme", ["alibi", "dynamic_ntk", "sinks"])
@pytest.mark.parametrize("role", [UNPATCHED, PATCHED])
def test_every_round_of_decoding_starts_equally(scheme: str, role: str) -> None:
    decode = Decode(variant(made(), role, entry(scheme), LENGTH, 8 * TRAINED), tokens())
    found = []
    for calls in (1, 5, 2):
        decode.reset()
        assert decode.cache.get_seq_length() == LENGTH + 1, "the text, and a token that is not timed"
        with torch.inference_mode():
            decode.call()
            assert decode.cache.get_seq_length() == LENGTH + 2
            found.append([layer.keys.clone() for layer in decode.cache.layers])
            for _ in range(calls):
                decode.call()
    for again in found[1:]:
        for one, other in zip(found[0], again, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert decode.held() > 0


@pytest.mark.parametrize("shape", [(1, 10, 4, 2), (1, 64, 4, 3)])
def test_invalid_shapes_are_refused(shape: tuple[int, int, int, int]) -> None:
    with pytest.raises(OptionOutOfRange, match="shape has"):
        random_model(shape, 64, torch.float32)
