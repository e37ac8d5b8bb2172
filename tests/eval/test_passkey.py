"""Passkeys: prompts fit and hide the key where they say."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_posenc.eval.texts.haystack import FILLER
from hf_posenc.eval.texts.passkey import FRAME, NEEDLE, QUESTION, draw_key, passkey


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(length=st.integers(110, 600), depth=st.floats(0, 1), seed=st.integers(0, 99))
def test_prompt_fits_and_is_whole(tokenizer, length: int, depth: float, seed: int) -> None:
    def count(text: str) -> int:
        return len(tokenizer(text)["input_ids"])

    key = draw_key(random.Random(seed))
    made = passkey(length, depth, key, count)
    tokens = count(made + f" {key}")
    assert tokens <= length
    assert length - tokens < 2 * max(count(sentence + " ") for sentence in FILLER)  # one more sentence would not fit
    assert made.startswith(FRAME)
    assert made.endswith(QUESTION)
    before, found, after = made[len(FRAME) : -len(QUESTION)].partition(NEEDLE.format(key=key))
    assert found
    assert "passkey" not in before + after
    total = before.count(".") + after.count(".")
    assert abs(before.count(".") - depth * total) <= 0.5
