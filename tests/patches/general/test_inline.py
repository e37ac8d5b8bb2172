"""Attention that a class computes inline: what is noted of its scores, what is refused, and what the models return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hf_posenc import patch_model
from hf_posenc.errors import UnsupportedModel
from hf_posenc.patches.general.inline import Interception

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
    return interception.with_weights(out)


LATER = torch.full((LENGTH, LENGTH), -1e9).triu(1)


def in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    scores.div_(2.0)
    scores.masked_fill_((LATER < 0).expand(3, HEADS, -1, -1), -1e9)
    return torch.matmul(scores.softmax(dim=3), v)


FORWARDS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "scaled": lambda q, k, v: nn.functional.softmax(torch.matmul(q, k.transpose(-1, -2)) / 2.0, dim=-1) @ v,
    "masked": lambda q, k, v: torch.matmul((0.3 * (q @ k.mT) + LATER).softmax(-1), v),
    "in place": in_place,
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
    "softmax over something other": lambda q, k, v: (q @ k.mT).softmax(-2) @ v,
    "splits or merges the query or key axis": lambda q, k, v: (q @ k.mT).view(3, -1).softmax(-1) @ v,
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
            interception.with_weights(out)
        return
    with pytest.raises(UnsupportedModel, match=what):
        intercepted(REFUSED[what])


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
        ("convbert", "Padding reaches other tokens"),
        ("nystromformer", "Padding reaches other tokens"),
        ("big_bird", "once a call"),
        ("openai-gpt", "more than one number"),
    ],
)
def test_other_attention_is_refused(name: str, why: str) -> None:
    with pytest.raises(UnsupportedModel, match=why):
        patch_model(tiny(name, masked=name != "openai-gpt"), "host")


@pytest.mark.slow
def test_a_graph_is_for_any_number_of_rows() -> None:
    model = tiny("xlm")
    patch_model(model, "alibi", factor=2)
    ids = tokens(24)
    any_size = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    call = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    graph = torch.export.export(model, (), call, dynamic_shapes=dict.fromkeys(call, any_size), strict=False).module()
    other = {"input_ids": ids[:1, :9], "attention_mask": torch.ones(1, 9, dtype=torch.long)}
    assert (graph(**other).logits - model(**other).logits).abs().max() < 1e-5
