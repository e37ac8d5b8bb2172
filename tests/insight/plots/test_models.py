"""Schemes inside a model: its table, projections and learned parameters; the model is restored."""

from __future__ import annotations

import pytest
import torch

import hf_posenc
from hf_posenc.errors import AlreadyPatched, OutsideModel, SchemeNotDefined
from hf_posenc.insight.plots import numbers, pair_scores
from hf_posenc.insight.plots.kinds import plot_of
from hf_posenc.insight.plots.models import Model, Shapes
from hf_posenc.insight.plots.pair_scores import call_of
from hf_posenc.insight.plots.registry import Target, View
from hf_posenc.patching.state import is_patched
from hf_posenc.schemes.entry import Entry


@pytest.fixture(scope="module")
def gpt2() -> torch.nn.Module:
    return hf_posenc.load_starter("gpt2")[0]


def test_a_models_own_table_is_used(gpt2: torch.nn.Module) -> None:
    before = {name: weight.clone() for name, weight in gpt2.state_dict().items()}
    own, learned = numbers("unpatched,learned", "code", model=gpt2, length=50)
    assert torch.equal(own.numbers["code"], gpt2.transformer.wpe.weight[:50])
    assert torch.equal(learned.numbers["code"], own.numbers["code"])
    assert not is_patched(gpt2)
    assert all(torch.equal(weight, before[name]) for name, weight in gpt2.state_dict().items())


def test_the_model_is_restored_after_an_error(gpt2: torch.nn.Module) -> None:
    with pytest.raises(SchemeNotDefined), Model(gpt2).target(Entry("remap", "self_extend"), {}):
        pass
    with pytest.raises(ZeroDivisionError), Model(gpt2).target(Entry("bias", "alibi"), {}):
        raise ZeroDivisionError
    assert not is_patched(gpt2)


def test_a_scheme_with_layer_projections_needs_a_model(gpt2: torch.nn.Module) -> None:
    with pytest.raises(OutsideModel, match="--model"):
        numbers("deberta", "bias", shapes=Shapes(heads=4, head_dim=8, width=16))
    found = numbers("deberta", "bias", model=gpt2, length=12)[0].numbers["bias"]
    first, second = found[0, 5, 3], found[0, 9, 7]
    assert torch.allclose(first, second)  # all tokens are alike: the distance alone counts
    assert found.nan_to_num().abs().max() > 0


def test_a_carried_scheme_is_refused_and_stays() -> None:
    """Shown by its name, it would have the initial values of its parameters."""
    model = hf_posenc.patch_model(hf_posenc.load_starter("llama")[0], "t5")
    scheme = hf_posenc.scheme_of(model)
    for asked in ("t5", "alibi", "unpatched"):
        with pytest.raises(AlreadyPatched):
            numbers(asked, "score", model=model, length=4)
    assert hf_posenc.scheme_of(model) is scheme


def test_a_carried_scheme_is_a_target_of_its_own() -> None:
    """What CHANGELOG names for it: the scheme with what it has learned."""
    model = hf_posenc.patch_model(hf_posenc.load_starter("llama")[0], "t5")
    scheme = hf_posenc.scheme_of(model)
    with torch.no_grad():
        scheme.table.weight[0] = 5.0  # type: ignore[union-attr, index, operator]
        found = plot_of("bias").numbers(Target("t5", scheme), View(length=8))  # type: ignore[arg-type]
    assert found["bias"][:, 4, 4].tolist() == [5.0] * len(found["bias"])


def test_layers_may_differ() -> None:
    def scores(layer: int) -> torch.Tensor:
        with Shapes(layers=4).target(Entry("irope", "irope"), {}, layer) as target:
            return pair_scores.scores(call_of(target, 9))[0, 0, 8]

    assert torch.allclose(scores(3), torch.ones(9))  # every fourth layer has no positions
    assert scores(0).min() < 0.9
