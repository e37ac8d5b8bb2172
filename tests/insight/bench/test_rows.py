"""Rows that a benchmark runs on, and cases that run on them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.bench import bench, random_model
from hf_posenc.insight.bench.cases import Decode, StaticDecode
from hf_posenc.insight.bench.settings import IGNORED, BenchSettings, rows_of
from hf_posenc.patching.patch import patch_model
from hf_posenc.schemes.entry import entries_of

LENGTH = 40


def model_of(kind: str = "llama") -> PreTrainedModel:
    return random_model((1, 32, 2, 2), kind, 64, torch.float32)


def tokens(rows: int = 3) -> torch.Tensor:
    return torch.randint(0, 1024, (rows, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("causal", [True, False])
def test_padded_rows_are_ever_shorter_down_to_half(causal: bool) -> None:
    rows = rows_of("padded", tokens(), causal=causal)
    assert rows.mask is not None
    assert rows.mask.sum(1).tolist() == [40, 30, 20]
    assert rows.tokens == 90
    real = rows.mask[2].bool()
    assert real.tolist() == [not causal] * 20 + [causal] * 20  # a decoder goes on behind the last token
    assert (rows.labels[2][~real] == IGNORED).all()
    assert torch.equal(rows.labels[2][real], rows.ids[2][real])


def test_packed_rows_are_documents_that_do_not_see_each_other() -> None:
    model, rows = model_of(), rows_of("packed", tokens(), causal=True)
    other = rows.ids.clone()
    other[:, 0] += 1
    with torch.no_grad():
        change = (
            model(rows.ids, use_cache=False, **rows.keywords).logits
            - model(other, use_cache=False, **rows.keywords).logits
        )
    assert (change[:, 5].abs() > 0).any()
    assert not change[:, 10:].any()
    assert rows.tokens == 3 * LENGTH


@pytest.mark.parametrize("scheme", ["yarn", "fox"])
@pytest.mark.parametrize("case", [Decode, StaticDecode])
def test_a_token_behind_padded_rows_is_the_one_behind_each_text(case: type[Decode], scheme: str) -> None:
    model = patch_model(model_of(), scheme, factor=2)
    rows = rows_of("padded", tokens(), causal=True)
    decode = case(model, rows)
    for _ in range(2):  # the rounds begin equally
        decode.reset()
        decode.call()
        mask = decode.mask[:, : decode.read + 1]
        with torch.inference_mode():
            batched = model(decode.token, attention_mask=mask, past_key_values=decode.cache, use_cache=True).logits
        for number, real in enumerate(rows.mask.bool()):
            read = [*rows.ids[number][real].tolist(), *[int(rows.ids[number, 0])] * 3]
            with torch.inference_mode():
                alone = model(torch.tensor([read])).logits[:, -1:]
            torch.testing.assert_close(batched[number : number + 1], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("cases", [("static_decode",), ("train",)])
def test_all_models_of_a_compiled_run_are_compiled(cases: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[str, Any]] = []

    def spied(module: nn.Module, **options: Any) -> None:
        compiled.append((type(module).__name__, options["dynamic"]))

    monkeypatch.setattr(nn.Module, "compile", spied)
    settings: dict[str, Any] = {"cases": cases, "baselines": ("unpatched",), "rounds": 1}
    (cell,) = bench(model_of(), "yarn", [32], compiled=True, **settings)
    assert cell.state == "done"
    shapes_vary = None if cases == ("static_decode",) else True
    assert compiled == [("LlamaForCausalLM", shapes_vary)] * 2
    assert all(cell.state == "done" for cell in bench(model_of(), "yarn", [32], **settings))
    assert len(compiled) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": "padded"}, "no padding"), ({"rows": "ragged", "batch": 2}, "ragged"),
        ({"rows": "packed", "cases": ("decode",)}, "packed"), ({"compiled": True, "cases": ("decode",)}, "grows"),
    ],
    ids=str,
)  # fmt: skip
def test_settings_without_effect_or_meaning_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionOutOfRange, match=message):
        BenchSettings(entries_of("yarn"), [32], **settings)
