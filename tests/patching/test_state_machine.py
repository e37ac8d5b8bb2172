"""Random sequences of operations: patch, use, train, cast, copy, save, load, adapt, unpatch.

After every step: the model reads a text at once as it reads it in cached pieces, another model reads what it always
read, and no module or class that all models share has changed. Unpatched, everything is as it was before.
"""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from torch import nn
from transformers.cache_utils import DynamicCache

from hf_posenc import (
    from_pretrained,
    is_patched,
    patch_model,
    scheme_of,
    unpatch_model,
)
from hf_posenc.checks.forward import (
    forward,
    forward_in_chunks,
    max_deviation,
    new_cache,
    random_tokens,
)
from hf_posenc.checks.life_cycle import differences, global_snapshot, snapshot
from hf_posenc.checks.peft import add_lora
from hf_posenc.checks.tiny_models import TINY_MODELS, TRAINED_LENGTH, tiny_model
from hf_posenc.checks.tolerances import LOGITS
from hf_posenc.errors import AlreadyPatched, OptionOutOfRange, SchemeNotDefined

peft = pytest.importorskip("peft", reason="LoRA needs the extra `train`")

SCHEMES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("yarn", {}), ("alibi", {}), ("t5", {}), ("dynamic_ntk", {}), ("sinusoidal", {}), ("shaw", {}), ("fox", {}),
    ("self_extend", {}), ("yarn+logn", {}), ("sinks", {"sinks": 3, "recent": 13}), ("window", {"size": 20}),
    ("alibi", {"layers": {"::2": "t5"}}),
)  # fmt: skip
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
LENGTH = TRAINED_LENGTH - 4  # within the table of every model, patched or not


class Life(RuleBasedStateMachine):
    """One model from somebody's hands, and another that must not notice."""

    def __init__(self) -> None:
        super().__init__()
        self.name, self.model, self.wrapper = "llama", tiny_model("llama"), None
        for name in TINY_MODELS:  # what transformers finds out on first use, it keeps in its modules
            forward(tiny_model(name), random_tokens(tiny_model(name), 5))
        self.bystander = tiny_model("llama")
        self.witness = forward(self.bystander, random_tokens(self.bystander, 9))
        self.around = global_snapshot()
        self.before: dict[str, Any] | None = None

    @property
    def patched(self) -> bool:
        return is_patched(self.model)

    @property
    def reads(self) -> nn.Module:
        return self.model if self.wrapper is None else self.wrapper

    @precondition(lambda self: not self.patched and self.wrapper is None)
    @rule(name=some.sampled_from(["llama", "gpt2", "bert_decoder"]))
    def another_host(self, name: str) -> None:
        self.name, self.model = name, tiny_model(name)

    @precondition(lambda self: not self.patched)
    @rule(scheme=some.sampled_from(SCHEMES), factor=some.sampled_from([1, 2, 4]))
    def patch(self, scheme: tuple[str, dict[str, Any]], factor: int) -> None:
        before = snapshot(self.model, random_tokens(self.model, LENGTH))
        try:
            patch_model(self.model, scheme[0], factor=factor, **scheme[1])
        except (SchemeNotDefined, OptionOutOfRange):  # or a table ends before the target length
            assert differences(before, snapshot(self.model, random_tokens(self.model, LENGTH))) == (
                0.0,
                "nothing",
            )
            return
        self.before = before if self.wrapper is None else None

    @precondition(lambda self: self.patched)
    @rule()
    def patch_again(self) -> None:
        with pytest.raises(AlreadyPatched):
            patch_model(self.model, "pi", factor=2)

    @precondition(lambda self: self.patched)
    @rule()
    def unpatch(self) -> None:
        unpatch_model(self.model)
        if self.before is not None:
            assert differences(self.before, snapshot(self.model, random_tokens(self.model, LENGTH))) == (
                0.0,
                "nothing",
            )
        self.before = None

    @rule(length=some.integers(1, LENGTH), rows=some.integers(1, 3))
    def forward(self, length: int, rows: int) -> None:
        assert forward(self.reads, random_tokens(self.model, length, rows=rows)).isfinite().all()

    @rule(length=some.integers(2, LENGTH // 2))
    def generate(self, length: int) -> None:
        prompt = random_tokens(self.model, length)
        ends = {"pad_token_id": 0, "eos_token_id": None, "bos_token_id": 0}
        out = self.reads.generate(input_ids=prompt, max_new_tokens=3, do_sample=False, **ends)
        assert out.shape == (1, length + 3)
        assert torch.equal(out[:, :length], prompt)

    @rule()
    def train_a_step(self) -> None:
        weights = [weight for weight in self.reads.parameters() if weight.requires_grad]
        if not weights:  # PEFT froze them, and leaves them so
            return
        optimiser = torch.optim.SGD(weights, lr=1e-3)
        tokens = random_tokens(self.model, LENGTH, rows=2)
        self.reads.train()
        self.reads(input_ids=tokens, labels=tokens).loss.backward()
        assert all(weight.grad is None or bool(weight.grad.isfinite().all()) for weight in weights)
        optimiser.step()
        optimiser.zero_grad()
        self.reads.eval()
        self.before = None  # its weights are others from here on

    @rule(dtype=some.sampled_from(DTYPES))
    def cast(self, dtype: torch.dtype) -> None:
        self.reads.to(dtype)
        self.before = None

    @rule(keep_the_copy=some.booleans())
    def deepcopy(self, keep_the_copy: bool) -> None:
        tokens = random_tokens(self.model, LENGTH)
        wanted, (model, wrapper) = forward(self.reads, tokens), copy.deepcopy((self.model, self.wrapper))
        assert torch.equal(forward(model if wrapper is None else wrapper, tokens), wanted)
        if keep_the_copy:
            self.model, self.wrapper, self.before = model, wrapper, None
        elif is_patched(model):
            unpatch_model(model)
        assert torch.equal(forward(self.reads, tokens), wanted)

    @precondition(lambda self: self.wrapper is None)
    @rule()
    def save_and_load(self) -> None:
        tokens = random_tokens(self.model, LENGTH)
        wanted, dtype, patched = forward(self.model, tokens), self.model.dtype, self.patched
        with tempfile.TemporaryDirectory() as folder:
            self.model.save_pretrained(folder)
            if not patched:  # a cast rounds the model's own frequencies, and a load does not
                wanted = forward(type(self.model).from_pretrained(folder, dtype=dtype).eval(), tokens)
            self.model = from_pretrained(folder, dtype=dtype).eval()
        assert self.patched == patched
        assert torch.equal(forward(self.model, tokens), wanted)
        self.before = None

    @precondition(lambda self: self.wrapper is None)
    @rule()
    def add_lora(self) -> None:
        self.wrapper, self.before = add_lora(self.model), None

    @precondition(lambda self: self.wrapper is not None)
    @rule(merged=some.booleans())
    def take_lora_off(self, merged: bool) -> None:
        tokens = random_tokens(self.model, LENGTH)
        wanted = forward(self.wrapper, tokens)
        self.model = self.wrapper.merge_and_unload() if merged else self.wrapper.unload()
        self.wrapper = None
        if merged:
            self._close(forward(self.model, tokens), wanted)

    @invariant()
    def cached_is_uncached(self) -> None:
        tokens = random_tokens(self.model, LENGTH)
        if self.patched and scheme_of(self.model).needs_whole_text:
            return
        pieces = forward_in_chunks(
            self.reads, tokens, new_cache(DynamicCache, self.model, LENGTH), [LENGTH - 9, 1, 1, 7]
        )
        self._close(pieces, forward(self.reads, tokens))

    @invariant()
    def nobody_else_is_touched(self) -> None:
        assert torch.equal(forward(self.bystander, random_tokens(self.bystander, 9)), self.witness)
        assert differences(self.around, global_snapshot()) == (0.0, "nothing")

    def _close(self, one: torch.Tensor, two: torch.Tensor) -> None:
        value, where = max_deviation(one, two)
        assert value <= LOGITS[next(self.model.parameters()).dtype], (value, where)


UNSHRUNK = [Phase.explicit, Phase.generate]  # to make a failing life shorter takes minutes: left to the long run
USUAL = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=True)
BRIEF = settings(USUAL, stateful_step_count=10, phases=UNSHRUNK)


@pytest.mark.slow
def test_random_sequences_of_operations() -> None:
    run_state_machine_as_test(Life, settings=settings(BRIEF, max_examples=30))


@pytest.mark.full
def test_five_hundred_sequences_of_operations() -> None:
    run_state_machine_as_test(Life, settings=settings(USUAL, max_examples=500, stateful_step_count=30))


class Forgetful(Life):
    """Control: unpatching leaves a note."""

    @precondition(lambda self: self.patched)
    @rule()
    def unpatch(self) -> None:
        unpatch_model(self.model)
        self.model.base_model.note = 1
        if self.before is not None:
            assert differences(self.before, snapshot(self.model, random_tokens(self.model, LENGTH))) == (
                0.0,
                "nothing",
            )


@pytest.mark.slow
def test_control_a_wrong_state_is_noticed() -> None:
    with pytest.raises(AssertionError, match="attributes of"):
        run_state_machine_as_test(Forgetful, settings=settings(BRIEF, max_examples=60))
