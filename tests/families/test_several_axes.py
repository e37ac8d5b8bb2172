"""Models that place tokens on three axes (Qwen2-VL, Qwen3-VL), against themselves unpatched and transformers' scaling.

Text has the same number on every axis. Places of an image differ: rotations follow them as the unpatched model does,
where that is defined.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLTextConfig,
    Qwen2VLTextModel,
    Qwen3VLTextConfig,
    Qwen3VLTextModel,
)

from hf_posenc import export, patch_model
from hf_posenc.errors import InvalidInput

LENGTH = 12
CLOSE = 1e-4  # of outputs near 1
SIZES = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "initializer_range": 0.2,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256}
OPTIONS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"section": [2, 3, 3]},
    "qwen3_vl": {"section": [3, 3, 2], "interleaved": True},
}


def text_model(family: str, **scaling: Any) -> Any:
    torch.manual_seed(0)
    own = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": OPTIONS[family]["section"]}
    rotation = own | scaling
    if family == "qwen2_vl":
        return Qwen2VLTextModel(Qwen2VLTextConfig(**SIZES, rope_parameters=rotation)).eval()
    return Qwen3VLTextModel(Qwen3VLTextConfig(**SIZES, rope_parameters=rotation)).eval()


def ids() -> Tensor:
    return torch.randint(3, 96, (2, LENGTH), generator=torch.Generator().manual_seed(3))


def image() -> Tensor:
    """``[3, 2, token]``: text, an image of two rows and three columns, text."""
    time = torch.tensor([0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7, 8])
    height = torch.tensor([0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7, 8])
    width = torch.tensor([0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8])
    return torch.stack([time, height, width])[:, None].expand(3, 2, LENGTH)


@torch.no_grad()
def outputs(model: Any, **call: Any) -> Tensor:
    return model(ids(), **call)[0]


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("scheme", ["host", "rope", "mrope"])
@pytest.mark.parametrize("family", OPTIONS)
def test_an_image_is_as_unpatched(family: str, scheme: str, numbered: bool) -> None:
    """With the numbers of tokens before the axes, as ``generate`` has them, and without."""
    places = torch.cat([torch.arange(LENGTH).expand(1, 2, -1), image()]) if numbered else image()
    model = text_model(family)
    own, text = outputs(model, position_ids=places), outputs(model)
    patch_model(model, scheme)
    assert (outputs(model, position_ids=places) - own).abs().max() <= CLOSE
    assert (own - text).abs().max() > 100 * CLOSE  # control


@pytest.mark.parametrize(("scheme", "scaling"), [("yarn", YARN), ("pi", {"rope_type": "linear", "factor": 2.0})])
@pytest.mark.parametrize("family", OPTIONS)
def test_a_stretched_image_is_as_transformers_stretches_it(family: str, scheme: str, scaling: dict[str, Any]) -> None:
    stock = text_model(family, **scaling)
    wanted = outputs(stock, position_ids=image())
    model = patch_model(text_model(family), scheme, factor=2)
    assert (outputs(model, position_ids=image()) - wanted).abs().max() <= CLOSE
    assert (outputs(text_model(family), position_ids=image()) - wanted).abs().max() > 100 * CLOSE  # control


@pytest.mark.parametrize("scheme", ["host", "yarn", "yarn+logn"])
@pytest.mark.parametrize("family", OPTIONS)
def test_text_behind_an_image_is_read_from_the_cache(family: str, scheme: str) -> None:
    model = text_model(family)
    patch_model(model, scheme, **({} if scheme == "host" else {"factor": 2}))
    whole, first = outputs(model, position_ids=image()), 10
    with torch.no_grad():
        past = model(ids()[:, :first], position_ids=image()[..., :first], use_cache=True)
        for at in range(first, LENGTH):
            past = model(
                ids()[:, at : at + 1], position_ids=image()[..., at : at + 1], past_key_values=past.past_key_values
            )
            assert (past.last_hidden_state[:, 0] - whole[:, at]).abs().max() <= CLOSE


@pytest.mark.parametrize("scheme", ["dynamic_ntk", "rerope", "self_extend"])
@pytest.mark.parametrize("family", OPTIONS)
def test_an_image_is_not_read_as_text(family: str, scheme: str) -> None:
    model = patch_model(text_model(family), scheme, **({} if scheme == "rerope" else {"factor": 2}))
    with pytest.raises(InvalidInput, match=r"3 axes.*mrope"):
        outputs(model, position_ids=image())
    places = image().clone()
    places[1, 0, :9] = 77  # where nothing is read
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[:, :9] = 0
    alone = outputs(model, position_ids=places[:1].expand(3, -1, -1), attention_mask=mask)
    assert (outputs(model, position_ids=places, attention_mask=mask) - alone)[:, 9:].abs().max() <= CLOSE


def image_model() -> tuple[Any, dict[str, Tensor]]:
    """A Qwen2-VL, and a call of it with an image of six tokens."""
    torch.manual_seed(0)
    rotation = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    vision = {
        "depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2,
        "temporal_patch_size": 1, "mlp_ratio": 2,
    }  # fmt: skip
    special = {"image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    text = {name: value for name, value in SIZES.items() if name != "head_dim"} | {"rope_parameters": rotation} | ends
    model = Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=text, vision_config=vision, **special)).eval()
    words = torch.randint(3, 90, (1, 11))
    tokens = torch.cat((words[:, :5], torch.tensor([[92, *6 * [90], 93]]), words[:, 5:]), dim=1)
    return model, {
        "input_ids": tokens, "pixel_values": torch.randn(24, 48), "image_grid_thw": torch.tensor([[1, 4, 6]]),
        "mm_token_type_ids": (tokens == 90).long(),
    }  # fmt: skip


@torch.no_grad()
def test_an_exported_model_reads_images_in_plain_transformers(tmp_path: Path) -> None:
    model, call = image_model()
    own = model(**call).logits
    patch_model(model, "yarn", factor=4)
    wanted = model(**call).logits
    export(model, tmp_path / "plain")
    plain = Qwen2VLForConditionalGeneration.from_pretrained(tmp_path / "plain").eval()
    assert (plain(**call).logits - wanted).abs().max() <= CLOSE
    assert (own - wanted).abs().max() > 100 * CLOSE  # control
    written = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert written["text_config"]["rope_scaling"]["mrope_section"] == [2, 3, 3]
    assert "rope_scaling" not in written
    greedy = {"max_new_tokens": 8, "do_sample": False}
    assert model.generate(**call, **greedy).equal(plain.generate(**call, **greedy))
