"""Compiled, exported and traced models, and `torch.func`, equal eager mode; decoding is one graph."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from transformers.cache_utils import StaticCache

from hf_posenc import patch_model
from hf_posenc.checks import CHECKS, Case
from hf_posenc.checks.forward import forward, max_deviation, new_cache, random_tokens
from hf_posenc.checks.graph_export import Logits
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.terms import RowRotation
from hf_posenc.errors import NotTraceable
from hf_posenc.forward import validate_inputs
from hf_posenc.patching.state import scheme_of

from .case_lists import ALL_CASES, QUICK


@pytest.mark.slow
@pytest.mark.parametrize("case", QUICK[::3], ids=str)
def test_compiled_equals_eager(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every third scheme of those with hooks of their own, as the first call of a process; the matrix has all."""
    monkeypatch.setattr(validate_inputs, "_PARAMETERS", {})
    deviation = CHECKS["torch_compile"](case)
    assert not deviation.failed, deviation


@pytest.mark.full
@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_every_case_compiles(case: Case) -> None:
    deviation = CHECKS["torch_compile"](case)
    assert not deviation.failed, deviation


@pytest.mark.slow
def test_compiling_warns_of_nothing() -> None:
    """The compiler warns, once a process, where it traces through a cache of Python's: of "silent incorrectness"."""
    model = patch_model(tiny_model("gpt2"), "alibi", factor=2)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.compile(model, backend="eager")(random_tokens(model, 24))


@pytest.mark.slow
def test_a_deep_copy_is_one_graph() -> None:
    """BERT's layers read a copied configuration; a copy made while tracing would break the graph."""
    model = patch_model(tiny_model("bert"), "alibi", factor=2)
    tokens = random_tokens(model, 24)
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(copy.deepcopy(model), fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(input_ids=tokens).logits, model(input_ids=tokens).logits)


STEPS = 3
ONE_PER_ROUTE = [  # one scheme of each kind of terms; others share their code
    Case("llama", "yarn", factor=4),
    Case("llama", "alibi", factor=4),
    Case("llama", "rerope", factor=4),
    Case("llama", "rerope", factor=4, key_cache="one"),
    Case("gpt2", "t5", factor=4),
    Case("llama", "window", factor=4),
]


def compiled_decoding(case: Case) -> tuple[float, int]:
    """Deviation of compiled cached decoding from one eager forward pass, and the number of graphs."""
    graphs = []

    def counted(graph: torch.fx.GraphModule, example: object) -> Callable:
        graphs.append(graph)
        return graph.forward

    with case.patched() as model, torch.no_grad():
        torch.compiler.reset()
        length = case.clip_length(2 * TRAINED_LENGTH + 5, model)
        tokens, cache = random_tokens(model, length), new_cache(StaticCache, model, length)
        compiled = torch.compile(model, fullgraph=True, backend=counted, dynamic=False)
        model(input_ids=tokens[:, :-STEPS], past_key_values=cache)
        steps = [
            compiled(input_ids=tokens[:, t : t + 1], past_key_values=cache).logits
            for t in range(length - STEPS, length)
        ]
        return max_deviation(torch.cat(steps, dim=1), forward(model, tokens)[:, -STEPS:])[0], len(graphs)


@pytest.mark.slow
@pytest.mark.parametrize("case", ONE_PER_ROUTE, ids=str)
def test_one_graph_for_all_steps(case: Case) -> None:
    deviation, graphs = compiled_decoding(case)
    assert deviation <= case.tolerance("cache")
    assert graphs == 1, "a step was recompiled"


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


@pytest.mark.parametrize("scheme", ["yarn", "alibi", "t5", "dynamic_ntk", "sinks"])
def test_transforms(scheme: str) -> None:
    with Case("llama", scheme, factor=4).patched() as model:
        tokens, weights = random_tokens(model, 20, rows=3), dict(model.named_parameters())

        def logits(weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
            return functional_call(model, weights, (), {"input_ids": tokens, "use_cache": False}).logits

        def loss(weights: dict[str, Tensor]) -> Tensor:
            return logits(weights, tokens).log_softmax(-1)[..., :5].mean()

        plain = logits(weights, tokens)
        each = vmap(lambda row: logits(weights, row[None])[0])(tokens)
        assert max_deviation(each, plain)[0] <= 1e-4
        by_autograd = torch.autograd.grad(loss(weights), list(weights.values()), allow_unused=True)
        for name, found, expected in zip(weights, grad(loss)(weights).values(), by_autograd, strict=True):
            if expected is not None:
                assert torch.allclose(found, expected, atol=1e-5), name
