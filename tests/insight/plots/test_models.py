"""Schemes inside a model: its table, projections and learned parameters; the model is restored."""

from __future__ import annotations

import pytest
import torch

import hf_posenc
from hf_posenc.errors import AlreadyPatched, OutsideModel, SchemeNotDefined
from hf_posenc.insight.plots import numbers, pair_scores
from hf_posenc.insight.plots.models import Model, Shapes
from hf_posenc.insight.plots.pair_scores import call_of
from hf_posenc.insight.plots.registry import NothingToPlot
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


def test_learned_parameters_of_a_patched_model_are_used() -> None:
    model = hf_posenc.patch_model(hf_posenc.load_starter("llama")[0], "t5")
    scheme = hf_posenc.scheme_of(model)
    with torch.no_grad():
        scheme.table.weight[0] = 5.0  # type: ignore[union-attr, index, operator]
    for asked in ("t5", "t5_bias", None):
        (found,) = numbers(asked if asked is None else [asked], "bias", model=model, length=8)
        assert found.numbers["bias"][:, 4, 4].tolist() == [5.0] * len(found.numbers["bias"])
        assert found.label.startswith("t5")
    assert is_patched(model)


def test_a_carried_scheme_is_set_aside_for_others() -> None:
    model = hf_posenc.patch_model(hf_posenc.load_starter("llama")[0], "t5")
    scheme = hf_posenc.scheme_of(model)
    with torch.no_grad():
        scheme.table.weight.fill_(5.0)  # type: ignore[union-attr, operator]
    carried, alibi = numbers("t5,alibi", "bias_curve", model=model, length=4)
    assert bool((carried.numbers["bias"] == 5.0).all())
    assert alibi.numbers["bias"][0, 0] == 0.0
    with pytest.raises(NothingToPlot):
        numbers("unpatched", "bias_curve", model=model)
    assert hf_posenc.scheme_of(model) is scheme


def test_a_carried_scheme_has_its_own_options_and_lengths() -> None:
    model = hf_posenc.patch_model(hf_posenc.load_starter("llama")[0], "yarn", factor=2)
    found = numbers("yarn", "frequencies", model=model)[0].numbers
    assert float((found["before"] / found["after"][""]).max()) == pytest.approx(2.0)
    with pytest.raises(AlreadyPatched, match="factor was given"):
        numbers("yarn", "frequencies", model=model, factor=8)
    with pytest.raises(AlreadyPatched, match="beta_fast was given"):
        numbers("yarn:beta_fast=16", "frequencies", model=model)


def test_layers_may_differ() -> None:
    def scores(layer: int) -> torch.Tensor:
        with Shapes(layers=4).target(Entry("irope", "irope"), {}, layer) as target:
            return pair_scores.scores(call_of(target, 9))[0, 0, 8]

    assert torch.allclose(scores(3), torch.ones(9))  # every fourth layer has no positions
    assert scores(0).min() < 0.9
