"""Which families tell texts packed into a row apart by ``position_ids``: patched, the same as unpatched.

Models that make their masks without positions do not, so that a text attends to the one before it, nor do layers that
are no attention; docs/limits.md names both. Whether a family does is measured here on the unpatched model first: where
transformers changes, that page has to.
"""

from __future__ import annotations

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import PreTrainedModel

from hf_posenc import patch_model

from .tiny import tiny

FIRST, SECOND = 9, 7
ALONE = 1e-4  # of the largest logit
MASKS_WITHOUT_POSITIONS = (
    *("bert", "bert-generation", "electra", "ernie", "megatron-bert", "rembert", "roc_bert"),
    *("roberta", "roberta-prelayernorm", "camembert", "xlm-roberta", "xlm-roberta-xl", "xmod", "data2vec-text"),
    *("bart", "mbart", "mvp", "plbart", "marian", "pegasus", "bigbird_pegasus"),
    *("blenderbot", "blenderbot-small", "trocr"),
    *("opt", "biogpt", "xlm", "bloom", "mpt", "gpt_oss", "afmoe", "granitemoehybrid"),
)
HYBRIDS = ("jamba", "zamba", "zamba2", "falcon_h1", "minimax", "nemotron_h", "olmo_hybrid", "qwen3_next")
ENCODERS = ("bert", "roberta", "modernbert", "eurobert", "mpnet", "deberta-v2")


def told_apart(model: PreTrainedModel, **call: bool) -> bool:
    """Whether the second text of a row has the logits that it has alone."""
    row = torch.randint(3, 90, (1, FIRST + SECOND), generator=torch.Generator().manual_seed(5))
    positions = torch.cat([torch.arange(FIRST), torch.arange(SECOND)])[None]
    with torch.no_grad():
        alone = model(row[:, FIRST:], **call)[0]
        packed = model(row, position_ids=positions, **call)[0][:, FIRST:]
    return bool((packed - alone).abs().max() / alone.abs().max() <= ALONE)


@pytest.mark.parametrize("scheme", [None, "host", "alibi"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_the_second_text_of_a_row(family: str, scheme: str | None) -> None:
    model = tiny(family)
    if scheme is not None:
        patch_model(model, scheme)
    assert told_apart(model, use_cache=False)


@pytest.mark.parametrize("scheme", [None, "alibi"])
@pytest.mark.parametrize("family", [*MASKS_WITHOUT_POSITIONS, *HYBRIDS])
def test_families_that_read_a_row_as_one_text(family: str, scheme: str | None) -> None:
    model = tiny(family)
    if scheme is not None:
        patch_model(model, scheme)
    assert not told_apart(model, use_cache=False)


def test_falcon_tells_texts_apart_once_it_is_patched() -> None:
    model = tiny("falcon")
    if Version(transformers.__version__) < Version("5.24"):  # Falcon's masks know positions since
        assert not told_apart(model, use_cache=False)
    assert told_apart(patch_model(model, "host"), use_cache=False)


@pytest.mark.parametrize("scheme", [None, "alibi"])
@pytest.mark.parametrize("family", ENCODERS)
def test_encoders_read_a_row_as_one_text(family: str, scheme: str | None) -> None:
    model = tiny(family, masked=True)
    if scheme is not None:
        patch_model(model, scheme)
    assert not told_apart(model)
