"""Damaged, missing or stale weights that load silently: what transformers does, and what we do instead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from packaging.version import Version
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from transformers.trainer_utils import get_last_checkpoint

from hf_posenc import from_pretrained, patch_model
from hf_posenc.checkpoints.model_name import last_complete
from hf_posenc.errors import PosEncError
from hf_posenc.patching.config_guard import GUARD_KEY, SCHEME_KEY, unguard

from ..small_models import TRAINED, llama

TEXT = torch.randint(3, 64, (1, 4 * TRAINED), generator=torch.Generator().manual_seed(1))


READ = {"transformers": "5.23.0", "peft": "0.21.2"}
"""Releases the entries were written down from: of an older one an entry says nothing, as it may be right there."""


@contextmanager
def silent(who: str, what: str) -> Iterator[None]:
    """What happens inside is wrong and goes unnoticed; when it is noticed, or right, the entry is out of date."""
    try:
        yield
    except BaseException as error:
        if Version(version(who)) < Version(READ.get(who, "0")):
            return
        pytest.fail(
            f"{who} is not silent any more: {what}. It says {type(error).__name__}: {str(error)[:200]}. "
            "Look whether what this package does about it can go, and then this entry."
        )


@torch.no_grad()
def logits_of(model: nn.Module, ids: Tensor = TEXT, **call: object) -> Tensor:
    return model(ids, **call).logits


def deviation(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


APART = 0.05
"""What a mistake does to logits of a few units at least."""


def test_a_kernel_that_hides_nan() -> None:
    """CPU sdpa turns queries that are nan into zeros where a text is shorter than a register (torch issue 141128).

    A register holds 16 float32 numbers with AVX-512, 8 with AVX2, 4 with NEON.
    """
    model = llama(attn_implementation="sdpa")
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.fill_(float("nan"))
    with silent("torch", "logits of a short text are finite although a projection is nan"):
        assert logits_of(model, TEXT[:, :2]).isfinite().all()
    with pytest.raises(PosEncError, match="finite"):
        patch_model(model, "yarn", factor=4)


def test_a_patched_checkpoint_that_loads_as_a_plain_one(tmp_path: Path) -> None:
    """Without our guard, whoever has not got this package would compute something else and not know."""
    model = patch_model(llama(), "alibi", factor=4)
    model.save_pretrained(tmp_path)
    guarded = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(unguard(guarded, "here")))
    with silent(
        "transformers", f"keys of a configuration it does not know, such as {SCHEME_KEY}, are kept and ignored"
    ):
        assert deviation(logits_of(LlamaForCausalLM.from_pretrained(tmp_path)), logits_of(model)) > APART
    assert torch.equal(logits_of(from_pretrained(tmp_path)), logits_of(model)), "as the first versions saved it"
    (tmp_path / "config.json").write_text(json.dumps(guarded))
    assert GUARD_KEY in guarded
    with pytest.raises(Exception, match="hf_posenc"):
        LlamaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(logits_of(from_pretrained(tmp_path)), logits_of(model))


def test_an_old_file_wins_over_new_shards(tmp_path: Path) -> None:
    """Saved in shards into the folder of a model that was one file, the old one is loaded."""
    old, new = llama(), llama(initializer_range=0.2)
    with silent("transformers", "a save in shards leaves the single file of an earlier save, which is then loaded"):
        old.save_pretrained(tmp_path / "stock")
        new.save_pretrained(tmp_path / "stock", max_shard_size="8KB")
        assert torch.equal(logits_of(LlamaForCausalLM.from_pretrained(tmp_path / "stock")), logits_of(old))
    patch_model(old, "yarn", factor=4)
    patch_model(new, "t5", factor=4)
    for model, size in ((old, "5GB"), (new, "8KB"), (old, "5GB")):  # and the other way round
        model.save_pretrained(tmp_path / "ours", max_shard_size=size)
        assert torch.equal(logits_of(from_pretrained(tmp_path / "ours")), logits_of(model)), size


def test_a_save_that_was_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration is written first: interrupted, it lies next to the weights of an earlier save."""
    import transformers.modeling_utils

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    def interrupted(model: torch.nn.Module, folder: Path) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(transformers.modeling_utils, "safe_save_file", full)
            with pytest.raises(OSError, match="No space"):
                model.save_pretrained(folder)

    old, new = llama(), llama(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0})
    with silent("transformers", "a save cut short leaves the new configuration over the old weights, which load"):
        old.save_pretrained(tmp_path / "stock")
        interrupted(new, tmp_path / "stock")
        assert deviation(logits_of(LlamaForCausalLM.from_pretrained(tmp_path / "stock")), logits_of(old)) > APART
    patch_model(old, "yarn", factor=4).save_pretrained(tmp_path / "ours")
    interrupted(patch_model(llama(), "pi", factor=4), tmp_path / "ours")
    assert torch.equal(logits_of(from_pretrained(tmp_path / "ours")), logits_of(old))


def test_a_checkpoint_that_is_not_whole(tmp_path: Path) -> None:
    for step in (2, 4):
        (tmp_path / f"checkpoint-{step}").mkdir()
    with silent("transformers", "the newest checkpoint is resumed from, whole or not"):
        assert get_last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-4")
    assert last_complete(tmp_path) is None
