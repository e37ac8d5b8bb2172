"""`examples/hidden_numbers.py` scores what a model that reads only so many of the last tokens can know."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import one_hot

from hf_posenc import load_starter

sys.path.append(str(Path(__file__).parents[2] / "examples"))

import hidden_numbers

LENGTH = 1024


class Reader:
    """Answers from the last ``reach`` tokens of the text, by search; its cache holds what it has read."""

    def __init__(self, tokenizer, config, reach):
        self.tokenizer, self.config, self.reach = tokenizer, config, reach

    def __call__(self, ids, mask, positions, cache, **keywords):
        past = cache.get_seq_length()
        states = ids[:, None, :, None].float()
        seen = cache.update(states, states, 0)[0][0, 0, :, 0].long()
        if not past:
            self.read = seen
        assert torch.equal(seen[: len(self.read)], self.read), "the cache holds the text and nothing behind it"
        assert past in (0, len(self.read))
        text = self.tokenizer.decode(self.read[-self.reach :])
        kind = re.search(r"What is the (.+?)\?", self.tokenizer.decode(ids[0]))
        number = kind and re.search(rf"The {kind[1]} is (\d+)", text)
        answer = hidden_numbers.tokens(self.tokenizer, f" {number[1] if number else '00000'}")[0]
        following = torch.zeros(ids.shape[1], dtype=torch.long)
        following[-len(answer) - 1 : -1] = answer
        return SimpleNamespace(logits=one_hot(following, len(self.tokenizer))[None].float())


@pytest.mark.parametrize("reach", [LENGTH, LENGTH // 2])
def test_a_number_is_found_where_the_model_reaches(reach):
    model, tokenizer = load_starter("llama")
    sentences = [f"The {place}th boat left the harbour." for place in range(200)]
    found = hidden_numbers.answers(Reader(tokenizer, model.config, reach), tokenizer, sentences, LENGTH)
    assert len(found) == len(hidden_numbers.KINDS)
    assert found == {depth: depth > 1 - reach / LENGTH for depth in found}
