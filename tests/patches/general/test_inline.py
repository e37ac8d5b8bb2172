"""Attention that a class computes inline: what is noted of its scores, what is refused, and what the models return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hf_posenc import patch_model
from hf_posenc.errors import InvalidInput, UnsupportedModel
from hf_posenc.patches.general.inline import computes_inline
from hf_posenc.patches.general.interception import Interception

from ...families.tiny import tiny, tokens

HEADS, LENGTH, HEAD_DIM = 2, 5, 4


def vectors() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return tuple(torch.randn(3, HEADS, LENGTH, HEAD_DIM, generator=draw) for _ in range(3))  # type: ignore[return-value]


def attend_noted(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **call: Any) -> tuple[Tensor, Tensor]:
    """Attention from what was noted, in float64."""
    scores = query.double() @ key.double().transpose(-1, -2) * call["scaling"]
    weights = (scores if mask is None else scores + mask.double()).softmax(-1)
    return (weights @ value.double()).transpose(1, 2), weights


def intercepted(forward: Callable[[Tensor, Tensor, Tensor], Any]) -> Any:
    q, k, v = vectors()
    with Interception(attend_noted, torch.zeros(3, LENGTH, 8), "Toy") as interception:
        out = forward(q, k, v)
    assert interception.mixed is not None
    return interception.completed(out)


LATER = torch.full((LENGTH, LENGTH), -1e9).triu(1)
FORWARDS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "scaled": lambda q, k, v: nn.functional.softmax(torch.matmul(q, k.transpose(-1, -2)) / 2.0, dim=-1) @ v,
    "masked": lambda q, k, v: torch.matmul((0.3 * (q @ k.mT) + LATER).softmax(-1), v),
    "filled in place": lambda q, k, v: torch.matmul(
        (q @ k.mT).masked_fill_((LATER < 0).expand(3, HEADS, -1, -1), -1e9).softmax(dim=3), v
    ),
    "where": lambda q, k, v: torch.where(LATER == 0, q @ k.mT, torch.tensor(-1e9)).softmax(-1).to(v.dtype) @ v,
    "heads in the batch": lambda q, k, v: torch.bmm(
        nn.functional.dropout(
            (torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).view(3, HEADS, LENGTH, LENGTH) + LATER)
            .view(3 * HEADS, LENGTH, LENGTH)
            .softmax(-1),
            p=0.5,
            training=False,
        ),
        v.flatten(0, 1),
    ),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_noted_steps_give_the_same_attention(name: str) -> None:
    q, k, v = (x.double() for x in vectors())
    plain = FORWARDS[name](q, k, v)
    assert (intercepted(FORWARDS[name]) - plain).abs().max() < 1e-6


REFUSED: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "more than one number": lambda q, k, v: ((q @ k.mT) * torch.rand(LENGTH)).softmax(-1) @ v,
    "applies exp": lambda q, k, v: torch.exp(q @ k.mT) @ v,
    "another softmax": lambda q, k, v: (q @ k.mT).softmax(-2) @ v,
    "takes its attention scores apart": lambda q, k, v: (q @ k.mT).view(3, -1).softmax(-1) @ v,
    "scores themselves": lambda q, k, v: ((q @ k.mT).softmax(-1) @ v, q @ k.mT),
    "multiplies something else": lambda q, k, v: (q @ k.mT) @ v,
    "sets some of its attention scores": lambda q, k, v: (q @ k.mT).masked_fill(LATER < 0, 0.0).softmax(-1) @ v,
    "does not fit": lambda q, k, v: (q @ k.mT + LATER[:3, :3]).softmax(-1) @ v,
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_steps_are_refused(what: str) -> None:
    if what == "scores themselves":
        q, k, v = vectors()
        with Interception(attend_noted, torch.zeros(3, LENGTH, 8), "Toy") as interception:
            scores = q @ k.mT
            out = scores, scores.softmax(-1) @ v
        with pytest.raises(UnsupportedModel, match=what):
            interception.completed(out)
        return
    with pytest.raises(UnsupportedModel, match=what):
        intercepted(REFUSED[what])


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that an operation returns."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.numbers = max(self.numbers, out.untyped_storage().nbytes() // out.element_size())
        return out


@pytest.mark.parametrize("name", ["megatron-bert", "mpnet", "deberta-v2"])
@pytest.mark.parametrize("scheme", ["host", "sinusoidal"])
def test_no_scores_in_memory(name: str, scheme: str) -> None:
    length = 1024
    sizes = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 64}
    model = tiny(name, masked=True, max_position_embeddings=2 * length, **sizes)
    found = []
    for patched in (False, True):
        if patched:
            patch_model(model, scheme)
        with torch.no_grad(), Largest() as largest:
            model(input_ids=tokens(length, rows=1))
        found.append(largest.numbers)
    assert found[0] >= 4 * length**2  # control
    assert found[1] < 4 * length**2


@pytest.mark.parametrize("name", ["rembert", "xlm", "mpnet"])
def test_attention_weights(name: str) -> None:
    model, ids = tiny(name, masked=True), tokens(12)
    with torch.no_grad():
        own = model(input_ids=ids, output_attentions=True).attentions
        patch_model(model, "host")
        ours = model(input_ids=ids, output_attentions=True).attentions
    assert len(ours) == len(own) == 4
    assert all((one - two).abs().max() < 1e-6 for one, two in zip(own, ours, strict=True))


@pytest.mark.parametrize("name", ["megatron-bert", "deberta-v2"])
def test_layers_are_computed_again(name: str) -> None:
    """Gradient checkpointing: in the backward pass, padding and positions are still known."""
    model = tiny(name, masked=True, relative_attention=True, pos_att_type=["c2p", "p2c"])
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    patch_model(model.train(), "t5")
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, 8:] = 0

    def gradients() -> list[Tensor]:
        model.zero_grad()
        model(input_ids=tokens(12), attention_mask=mask).logits[:, :8].square().mean().backward()
        return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]

    plain = gradients()
    model.gradient_checkpointing_enable()
    again = gradients()
    assert all(torch.equal(one, two) for one, two in zip(plain, again, strict=True))


def test_alone_it_needs_positions() -> None:
    model = tiny("megatron-bert", masked=True)
    patch_model(model, "alibi")
    attention = next(module for module in model.modules() if computes_inline(module))
    with pytest.raises(InvalidInput, match="outside a forward pass"):
        attention(torch.zeros(1, 4, 64))
    assert attention(torch.zeros(1, 4, 64), position_ids=torch.arange(4)[None])[0].shape == (1, 4, 64)


def test_vectors_without_positions_are_refused() -> None:
    """LUKE attends to words and entities; entities stand nowhere in the text."""
    model = tiny("luke", masked=True, entity_vocab_size=20, entity_emb_size=64, use_entity_aware_attention=False)
    patch_model(model, "alibi")
    with pytest.raises(UnsupportedModel, match="queries of all tokens by their keys in this call"):
        model(
            input_ids=tokens(6, rows=1),
            entity_ids=torch.ones(1, 1, dtype=torch.long),
            entity_position_ids=torch.arange(6).view(1, 1, 6),
            entity_attention_mask=torch.ones(1, 1, dtype=torch.long),
        )


def test_positions_by_cells_of_a_table() -> None:
    """TAPAS starts counting again in every cell, which it finds by several token types."""
    model, ids = tiny("tapas", masked=True), tokens(30)
    types = torch.zeros(2, 30, 7, dtype=torch.long)
    types[:, :, 1], types[:, :, 2] = torch.arange(30) // 7, torch.arange(30) // 10
    mask = torch.ones_like(ids)
    mask[:, 25:] = 0
    calls = [{"token_type_ids": types}, {"token_type_ids": types, "attention_mask": mask}, {}]
    with torch.no_grad():
        own = [model(input_ids=ids, **call).logits[:, :25] for call in calls]
        assert (own[0] - own[2]).abs().max() > 0.1  # control
        patch_model(model, "host")
        ours = [model(input_ids=ids, **call).logits[:, :25] for call in calls]
    assert all((one - two).abs().max() < 1e-4 for one, two in zip(own, ours, strict=True))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("convbert", "read the padding beside them"),
        ("nystromformer", "read the padding beside them"),
        ("big_bird", "once a call"),
        ("openai-gpt", "more than one number"),
    ],
)
def test_other_attention_is_refused(name: str, why: str) -> None:
    with pytest.raises(UnsupportedModel, match=why):
        patch_model(tiny(name, masked=name != "openai-gpt"), "host")


def test_attention_of_unpatched_and_patched_models_is_captured() -> None:
    from hf_posenc.insight.probe.capture import capturable_attention, capture_attention

    model, ids = tiny("megatron-bert", masked=True), tokens(12, rows=1)
    classes = [type(module) for module in model.modules()]
    with torch.no_grad():
        stock = model(input_ids=ids).logits
        layers: list[int] = []
        with capturable_attention(model), capture_attention(model, lambda layer, call: layers.append(layer)):
            captured = model(input_ids=ids).logits
        assert [type(module) for module in model.modules()] == classes
        patch_model(model, "alibi")
        with capture_attention(model, lambda layer, call: layers.append(layer)):
            model(input_ids=ids)
    assert layers == 2 * [0, 1, 2, 3]
    assert (captured - stock).abs().max() < 1e-5
