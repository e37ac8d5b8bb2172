"""Targets are the same tokens at every length, and nothing is longer than asked."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_posenc.eval.errors import LengthTooShort, TextTooShort
from hf_posenc.eval.text import HELD_OUT, TRAINING, module_text
from hf_posenc.eval.windows import source_text, tokenized, windows

SHARED = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SHARED
@given(
    lengths=st.lists(st.integers(40, 400), min_size=1, max_size=4, unique=True).map(sorted),
    scored=st.integers(1, 32),
    count=st.integers(1, 4),
)
def test_windows_keep_their_promises(tokenizer, lengths: list[int], scored: int, count: int) -> None:
    source = tokenized(tokenizer, module_text("bisect") * 4)
    found = windows(source, tokenizer, lengths=lengths, scored=scored, count=count, longest=400)
    assert len(found) == count
    for window in found:
        target = source.ids[window.end - scored : window.end]
        for length, context in zip(lengths, window.contexts, strict=True):
            joined, before = tokenizer(context + window.target)["input_ids"], tokenizer(context)["input_ids"]
            assert length - 8 <= len(joined) <= length  # a context gives way by a few tokens to a clean cut
            assert tuple(joined[-scored:]) == target
            assert joined[:-scored] == before  # lm-eval finds the same border


def test_targets_do_not_depend_on_the_lengths_asked(tokenizer) -> None:
    source = tokenized(tokenizer, module_text("bisect") * 4)
    shared = {"scored": 16, "count": 4, "longest": 400}
    alone = windows(source, tokenizer, lengths=[64], **shared)
    among = windows(source, tokenizer, lengths=[100, 200, 400], **shared)
    assert [w.target for w in alone] == [w.target for w in among]
    moved = windows(source, tokenizer, lengths=[64], scored=16, count=4, longest=64)
    assert [w.target for w in moved] != [w.target for w in alone]  # control: without `longest`, they do


def test_special_tokens_count(framed_tokenizer, tokenizer) -> None:
    """A tokenizer that puts a token in front leaves one token less for the context."""
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    backend = tokenizer.backend_tokenizer.__class__.from_str(tokenizer.backend_tokenizer.to_str())
    backend.post_processor = processors.TemplateProcessing(single="<end> $A", special_tokens=[("<end>", 0)])
    starting = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<end>")
    source = tokenized(starting, module_text("bisect") * 4)
    window = windows(source, starting, lengths=[100], scored=8, count=1, longest=100)[0]
    ids = starting(window.contexts[0] + window.target)["input_ids"]
    assert ids[0] == 0
    assert 92 <= len(ids) <= 100


def test_impossible_sizes_raise(tokenizer) -> None:
    source = tokenized(tokenizer, module_text("bisect"))
    with pytest.raises(TextTooShort, match="shorter lengths"):
        windows(source, tokenizer, lengths=[100_000], scored=16, count=1, longest=100_000)
    with pytest.raises(LengthTooShort, match="above 64"):
        windows(source, tokenizer, lengths=[64, 128], scored=64, count=1, longest=128)


def test_held_out_text_is_held_out() -> None:
    assert not set(HELD_OUT) & set(TRAINING)
    assert all(module_text(name) for name in HELD_OUT)
    assert source_text(None).startswith(module_text(HELD_OUT[0]))
