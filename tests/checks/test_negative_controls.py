"""Every check can fail: each negative control exceeds the tolerance by more than a factor of 100."""

from __future__ import annotations

import pytest

from hf_posenc.checks import CHECKS, Case
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.life_cycle import differences, snapshot
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.errors import NoEffect, NotExpressible
from hf_posenc.patches.llama import PatchedLlamaAttention
from hf_posenc.patching import layer_run

from . import wrong_patches, wrong_schemes
from .wrong_patches import Modified, NoPatch

STALE = Case("llama", wrong_schemes.StaleDynamicNTK, factor=4)
BY_COLUMN = Case("llama", wrong_schemes.RotatesByColumn, factor=4)
BY_START = Case("llama", wrong_schemes.BiasByStart, factor=4)
IGNORES_PEFT = wrong_patches.IgnoresPeftModels("llama", "alibi", factor=4)
ALIBI = Case("llama", "alibi", factor=4)
ROPE = Case("llama", "rope", factor=4)

T5 = Case("llama", "t5", factor=4)

CONTROLS: dict[str, Case] = {
    "cache, keys rotated once": STALE,
    "cache_reorder, keys rotated once": STALE,
    "position_ids, keys counted back from the newest query": Modified(wrong_patches.forget_cached_positions, ALIBI),
    "custom_mask, ignored with a cache": Modified(wrong_patches.drop_mask_with_cache, ALIBI),
    "padded_decoding, keys rotated by column": BY_COLUMN,
    "batch, keys rotated by column": BY_COLUMN,
    "padding, keys rotated by column": BY_COLUMN,
    "packed, keys rotated by column": BY_COLUMN,
    "backend, a bias that eager ignores": Modified(wrong_patches.drop_bias_on("eager"), ALIBI),
    "effect, an unpatched forward": Modified(wrong_patches.forward_unpatched, ALIBI),
    "identity, another base": Modified(wrong_patches.change_base, ROPE),
    "causality, a mask off by one": Modified(wrong_patches.attend_one_token_ahead, ROPE),
    "length, NaN past the trained length": Modified(wrong_patches.nan_past_trained_length, ROPE),
    "unpatch, an additional attribute": Modified(wrong_patches.add_attribute, ALIBI),
    "second_patch, a patch that is accepted": NoPatch("llama", "alibi"),
    "deepcopy, a copy that is the original": Modified(wrong_patches.return_self_as_copy, ALIBI),
    "saving, a checkpoint without the scheme": Modified(wrong_patches.save_without_scheme, ALIBI),
    "isolation, a class attribute": Modified(wrong_patches.change_class, ALIBI),
    "gradients, a detached table": Modified(wrong_patches.detach_bias, T5),
    "gradient_checkpointing, a different recomputation": Modified(wrong_patches.recompute_differently, ROPE),
    "stateless, a slope by the longest text": Case("llama", wrong_schemes.SlopeByLongestText, factor=4),
    "formula, a bias that is ignored": Modified(wrong_patches.drop_bias_on("sdpa"), ALIBI),
    "formula_gradients, detached queries": Modified(wrong_patches.detach_queries, T5),
    "shift, a slope by the first position": BY_START,
    "distance, keys scaled by column": Modified(wrong_patches.scale_keys_by_column, ROPE),
    "far_positions, positions in bfloat16": Modified(wrong_patches.round_positions, ROPE),
    "cache_crop, keys rotated once": STALE,
    "generate, keys rotated once": STALE,
    "continuous_batching, keys rotated once": STALE,
    "precision, rounded values": Modified(wrong_patches.round_values, ROPE),
    "memory_growth, a square tensor": Modified(wrong_patches.allocate_square, ROPE),
    "torch_export, another graph": Modified(wrong_patches.differ_in_graphs, ROPE),
    "jit_trace, another graph": Modified(wrong_patches.differ_in_graphs, ROPE),
    "recompilation, another graph": Modified(wrong_patches.differ_in_graphs, ROPE),
    "torch_compile, another graph": Modified(wrong_patches.differ_in_graphs, ROPE),
    "flex_attention, a bias that flex ignores": Modified(wrong_patches.drop_bias_on("flex_attention"), ALIBI),
    "position_effect, a bias of zeros": Case("llama", wrong_schemes.RemovesPositions, factor=4),
    "options, one that is ignored": Case("llama", wrong_schemes.IgnoresOption, factor=4),
    "memory_leaks, positions of every forward pass": Case("llama", wrong_schemes.KeepsPositions, factor=4),
    "long_text, another slope from 100 keys on": Case("llama", wrong_schemes.SlopeByKeyCount, factor=4),
    "finite_differences, a detached table": Modified(wrong_patches.detach_bias, T5),
    "training_mode, another slope": Case("llama", wrong_schemes.SlopeByMode, factor=4),
    "native_export, keys scaled by column": Modified(wrong_patches.scale_keys_by_column, ROPE),
    "offload, a meta tensor": Case("llama", wrong_schemes.ReadsOffloadedParameter, factor=4),
    "configuration, read in forward": Modified(wrong_patches.read_config_in_forward, ROPE),
    "dtype_cast, a slope in a buffer": Case("llama", wrong_schemes.SlopeInBuffer, factor=4),
    "lora, a patch that ignores PEFT models": IGNORES_PEFT,
}


COMPILED = ("torch_compile", "recompilation", "torch_export", "flex_attention")


@pytest.mark.parametrize(
    "check", [pytest.param(name, marks=pytest.mark.slow if name.startswith(COMPILED) else ()) for name in CONTROLS]
)
def test_check_fails(check: str) -> None:
    deviation = CHECKS[check.partition(",")[0]](CONTROLS[check])
    assert deviation > 100 * deviation.tolerance, deviation
    assert deviation.failed
    assert deviation.command.startswith(("python -c", "hf-posenc check"))


def test_export_refuses_another_rotation_than_the_named_type() -> None:
    with pytest.raises(NotExpressible, match="another rotation"):
        CHECKS["native_export"](Case("llama", wrong_schemes.WrongNativeType, factor=4))


def test_every_check_has_a_control() -> None:
    without_control = set(CHECKS) - {name.partition(",")[0] for name in CONTROLS}
    assert not without_control


def test_patch_without_effect_is_refused_and_rolled_back() -> None:
    model = tiny_model("llama")
    tokens = random_tokens(model, TRAINED_LENGTH)
    before = snapshot(model, tokens)
    with pytest.raises(NoEffect, match="nothing moved"):
        Case(model, wrong_schemes.ZeroBias, factor=4).apply(model)
    assert differences(before, snapshot(model, tokens)) == (0.0, "nothing")


def test_a_score_factor_of_the_patched_class_alone_is_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof multiplies scores before and after the patch, so it must not use a name that only one of them has."""
    factor = property(lambda self: vars(self)["scaling"], lambda self, value: vars(self).update(scaling=value))
    monkeypatch.setattr(PatchedLlamaAttention, "late_factor", factor, raising=False)
    monkeypatch.setattr(layer_run, "SCORE_FACTORS", ("late_factor",))
    model = tiny_model("llama")
    with pytest.raises(NoEffect, match="nothing moved"):
        Case(model, wrong_schemes.ZeroBias, factor=4).apply(model)
