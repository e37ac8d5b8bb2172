"""Graphs of patched models beyond the checks, against the unpatched model or the eager forward pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hf_posenc.checks import Case
from hf_posenc.checks.forward import max_deviation, random_tokens
from hf_posenc.checks.graph_export import Logits
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.terms import RowRotation
from hf_posenc.errors import NotTraceable
from hf_posenc.patching.state import scheme_of

SCHEMES = ("yarn", "alibi", "shaw", "dynamic_ntk", "dynamic_yarn")


class Masked(nn.Module):
    """A model as a function of token ids and attention mask."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.model(input_ids=tokens, attention_mask=mask, use_cache=False).logits


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_trace_generalises_to_other_padding(scheme: str) -> None:
    """Traced with a mask of ones, the graph must still read the mask."""
    with Case("llama", scheme, factor=4).patched() as model, torch.no_grad():
        tokens, mask = random_tokens(model, 20, rows=2), torch.ones(2, 20, dtype=torch.long)
        traced = torch.jit.trace(Masked(model), (tokens, mask), check_trace=False)
        others = random_tokens(model, 20, rows=2, seed=1)
        padded = mask.clone()
        padded[0, :6] = 0
        unpadded = model(input_ids=others, attention_mask=mask, use_cache=False).logits
        expected = model(input_ids=others, attention_mask=padded, use_cache=False).logits
        assert max_deviation(traced(others, padded), expected, padded.bool())[0] <= 1e-4
        assert max_deviation(unpadded, expected, padded.bool())[0] > 1e-2, "the mask has no effect here"


def test_row_rotations_of_python_integers_are_refused_in_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third-party row rotation may compute frequencies from Python integers only."""
    with Case("llama", "dynamic_ntk", factor=4).patched() as model, torch.no_grad():
        rows = RowRotation(lambda positions: positions + 1, lambda length: Rotation((1.0 / length,) * 8))
        monkeypatch.setattr(type(scheme_of(model)), "row_rotation", lambda self: rows)
        with pytest.raises(NotTraceable, match="frequencies_of"):
            torch.export.export(
                Masked(model), (random_tokens(model, 8), torch.ones(1, 8, dtype=torch.long)), strict=False
            )


@pytest.mark.parametrize(
    "scheme", ["alibi", *(pytest.param(name, marks=pytest.mark.slow) for name in ("t5", "fox", "yarn"))]
)
def test_a_program_exported_with_gradients_can_be_trained(scheme: str) -> None:
    """Outside `torch.no_grad`, for one length: outputs and gradients are those of the eager model."""
    with Case("llama", scheme, factor=4).patched() as model:
        ids, eager = random_tokens(model, 40), Logits(model)
        program = torch.export.export(eager, (ids,), strict=False).module()
        weight = torch.randn(40, model.config.vocab_size, generator=torch.Generator().manual_seed(0))
        gradients = []
        for graph in (program, eager):
            graph.zero_grad()
            logits = graph(ids)
            (logits * weight).mean().backward()
            gradients.append((logits.detach(), {name: p.grad.clone() for name, p in graph.named_parameters()}))
        (found, theirs), (expected, ours) = gradients
        assert max_deviation(found, expected)[0] <= 1e-4
        largest = max(float(gradient.abs().max()) for gradient in ours.values())
        assert all((theirs[name] - ours[name]).abs().max() <= 1e-4 * largest for name in ours)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "scheme"),
    [
        *(("llama", scheme) for scheme in ("yarn", "alibi", "t5", "shaw", "longrope", "kerple", "sandwich")),
        *(("gpt2", scheme) for scheme in ("rope", "alibi")),
        *(("bert", scheme) for scheme in ("rope", "alibi")),
    ],
)
def test_one_program_for_lengths_that_were_not_traced(family: str, scheme: str) -> None:
    """What transformers' exporters to ExecuTorch and OpenVINO begin with."""
    with Case(family, scheme, factor=4).patched() as model, torch.no_grad():
        eager, length = Logits(model), torch.export.Dim("length", min=2, max=96)
        shapes = {"tokens": {1: length}}
        program = torch.export.export(eager, (random_tokens(model, 24),), dynamic_shapes=shapes, strict=False).module()
        for tokens in (random_tokens(model, count, seed=count) for count in (7, 40, 61)):
            assert max_deviation(program(tokens), eager(tokens))[0] <= 1e-4
            assert max_deviation(program(tokens.flip(1)), eager(tokens))[0] > 1e-2, "the program reads no text"
