"""The loss in chunks equals the whole one in value and gradients, with less memory."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from transformers import PreTrainedModel

pytest.importorskip("accelerate", reason="fine-tuning needs the extra `train`")

from accelerate.hooks import AlignDevicesHook, add_hook_to_module

from hf_posenc.errors import TrainingImpossible
from hf_posenc.training.chunked_loss import _CrossEntropyInChunks, chunked_loss

from ..families.tiny import tiny

WORDS, LENGTH = 211, 700  # several chunks, the last not full


def llama() -> PreTrainedModel:
    return tiny("llama", vocab_size=WORDS, num_hidden_layers=1, tie_word_embeddings=True)


def gpt2() -> PreTrainedModel:
    return tiny("gpt2", vocab_size=WORDS, n_layer=1, n_positions=LENGTH)


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    ids = torch.randint(WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": ids.masked_fill(ids % 5 == 0, -100)}


@pytest.mark.parametrize("make", [llama, gpt2])
@pytest.mark.parametrize("more", [{}, {"num_items_in_batch": torch.tensor(3000)}, {"num_items_in_batch": 3000}])
def test_a_model_has_the_same_loss_and_gradients(make, more, batch) -> None:
    whole, ours = make(), make()
    expected = whole(**batch, **more).loss
    expected.backward()
    with chunked_loss(ours, True, causal=True) as chunked:
        assert chunked
        loss = ours(**batch, **more).loss
        loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    for (name, parameter), other in zip(whole.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(other.grad, parameter.grad, rtol=1e-4, atol=1e-7, msg=name)
    assert ours(**batch).logits.shape == (2, LENGTH, WORDS)  # all is as it was


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("trained", ["hidden", "weight"])
def test_gradients_against_float64(bias, trained) -> None:
    torch.manual_seed(0)
    hidden, weight, offset = torch.randn(LENGTH, 16), torch.randn(WORDS, 16), torch.randn(WORDS) if bias else None
    labels = torch.randint(WORDS, (LENGTH,))
    wanted = {"hidden": hidden, "weight": weight}[trained].requires_grad_()
    _CrossEntropyInChunks.apply(hidden, weight, offset, labels).mul(0.5).backward()
    exact = wanted.detach().double().requires_grad_()
    given = {"hidden": hidden.detach().double(), "weight": weight.detach().double(), trained: exact}
    logits = functional.linear(given["hidden"], given["weight"], None if offset is None else offset.double())
    functional.cross_entropy(logits, labels, reduction="sum").mul(0.5).backward()
    torch.testing.assert_close(wanted.grad, exact.grad.float(), rtol=1e-4, atol=1e-5)


def test_bf16_is_as_exact_as_the_whole_loss() -> None:
    """Logits are summed in float32: torch's own op in chunks is off by 2 % here."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(LENGTH, 64).bfloat16(), torch.randn(WORDS, 64).bfloat16().requires_grad_()
    labels = torch.randint(WORDS, (LENGTH,))
    exact = weight.detach().double().requires_grad_()
    whole = weight.detach().clone().requires_grad_()
    loss = _CrossEntropyInChunks.apply(hidden, weight, None, labels)
    reference = functional.cross_entropy((hidden.double() @ exact.T), labels, reduction="sum")
    stock = functional.cross_entropy(functional.linear(hidden, whole).float(), labels, reduction="sum")
    for value in (loss, reference, stock):
        value.backward()
    assert abs(loss.item() / reference.item() - 1) < 2e-4
    assert error(weight.grad, exact.grad) < 1.5 * error(whole.grad, exact.grad)


def error(value: torch.Tensor, exact: torch.Tensor) -> float:
    return ((value.double() - exact).norm() / exact.norm()).item()


def gemma2(cap: float | None) -> PreTrainedModel:
    return tiny("gemma2", vocab_size=WORDS, num_hidden_layers=1, final_logit_softcapping=cap)


def granite() -> PreTrainedModel:
    return tiny("granite", vocab_size=WORDS, num_hidden_layers=1, logits_scaling=8.0)


def bart() -> PreTrainedModel:
    return tiny("bart", vocab_size=WORDS, decoder_layers=1, max_position_embeddings=LENGTH)


def with_own_loss() -> PreTrainedModel:
    model = llama()
    model.loss_function = lambda logits, labels, **kwargs: logits.sum()
    return model


def placed() -> PreTrainedModel:
    model = llama()
    add_hook_to_module(model.lm_head, AlignDevicesHook("cpu"))
    return model


@pytest.mark.parametrize(
    "model", [lambda: gemma2(30.0), bart, with_own_loss, placed], ids=["cap", "bart", "own", "placed"]
)
def test_a_model_that_does_more_with_its_logits_keeps_its_own_loss(model, batch) -> None:
    ours = model()
    expected = ours(**batch).loss
    with pytest.raises(TrainingImpossible), chunked_loss(ours, True, causal=True):
        pass
    with chunked_loss(ours, None, causal=True) as chunked:
        assert not chunked
        assert torch.equal(ours(**batch).loss, expected)
    assert torch.equal(ours(**batch).loss, expected)


@pytest.mark.parametrize("make", [lambda: gemma2(None), granite], ids=["gemma2", "granite"])
def test_logits_that_are_scaled_at_most_are_taken_in_chunks(make, batch) -> None:
    model = make()
    expected = model(**batch).loss
    with chunked_loss(model, None, causal=True) as chunked:
        assert chunked
        torch.testing.assert_close(model(**batch).loss, expected, rtol=1e-6, atol=0)
