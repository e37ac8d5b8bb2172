"""Benchmark cases: prefill, decoding of one token, and a training step."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache

from hf_posenc.errors import PosEncError
from hf_posenc.insight.bench.timing import MOST_CALLS
from hf_posenc.patching.state import base_model_of

CHUNK = 512  # tokens per forward pass when the cache is filled, which is not timed
TINY = 16  # tokens that warm a model up


class Prefill:
    """Prefill, the forward pass before the first new token: fill the KV cache and compute the last token's logits.

    An encoder runs without its head, which does not depend on position and whose logits can take most of the memory.

    Every case says how many tokens ``beyond`` the length it may reach: each timed call of a decoding step adds one.
    """

    name, decoder_only, scores_squared, beyond = "prefill", False, "one layer", 0

    def __init__(self, model: nn.Module, ids: Tensor) -> None:
        self.model, self.ids = model.eval(), ids
        if last_logits_only(model):
            self.more: dict[str, Any] = {"use_cache": True, "logits_to_keep": 1}
        else:
            self.model, self.more = base_model_of(model)[0], {}
        with torch.inference_mode():
            self.model(ids[:, :TINY], **self.more)

    @staticmethod
    def tokens(ids: Tensor) -> int:
        """Tokens of a call."""
        return ids.numel()

    def reset(self) -> None:
        """Nothing to reset: calls do not depend on each other."""

    def call(self) -> None:
        """Run the forward pass."""
        with torch.inference_mode():
            self.model(self.ids, **self.more)

    def held(self) -> int:
        """Bytes that remain allocated between calls."""
        return 0


class Decode:
    """Decode one token after a cached text.

    ``reset`` crops the cache to the text and decodes one untimed token: where a cache preallocates memory or
    keeps a copy of its keys, that token pays for it, and the timed one is like any in a long generation.
    """

    name, decoder_only, scores_squared, beyond = "decode", True, None, MOST_CALLS + 1

    def __init__(self, model: nn.Module, ids: Tensor) -> None:
        self.model, self.token, self.filled = model.eval(), ids[:, :1], ids.shape[1] - 1
        self.more = {"logits_to_keep": 1} if last_logits_only(model) else {}
        self.cache = DynamicCache()
        with torch.inference_mode():
            for chunk in ids[:, : self.filled].split(CHUNK, dim=1):
                model(chunk, past_key_values=self.cache, use_cache=True, **self.more)
        kept = copy.deepcopy(self.cache)
        self.call()
        self.kept = None if cropped(self.cache, self.filled) else kept

    @staticmethod
    def tokens(ids: Tensor) -> int:
        """Tokens of a call."""
        return len(ids)

    def reset(self) -> None:
        """Restore the filled cache and decode one more token."""
        if self.kept is not None:
            self.cache = copy.deepcopy(self.kept)
        else:
            cropped(self.cache, self.filled)
        self.call()

    def call(self) -> None:
        """Decode one token."""
        with torch.inference_mode():
            self.model(self.token, past_key_values=self.cache, use_cache=True, **self.more)

    def held(self) -> int:
        """Bytes of the cache."""
        return sum(tensor_storages(self.cache).values())


class Train:
    """Training step without optimiser: forward and backward of the model's own loss, or of its states' mean square."""

    name, decoder_only, scores_squared, beyond = "train", False, "all layers", 0

    def __init__(self, model: nn.Module, ids: Tensor) -> None:
        self.model, self.ids = model.train(), ids
        accepts = inspect.signature(model.forward).parameters
        self.has_loss = "labels" in accepts and last_of(model) is not None
        self.more = {"use_cache": False} if "use_cache" in accepts else {}
        self.step(ids[:, :TINY])
        self.reset()

    @staticmethod
    def tokens(ids: Tensor) -> int:
        """Tokens of a call."""
        return ids.numel()

    def reset(self) -> None:
        """Drop the gradients."""
        self.model.zero_grad(set_to_none=True)

    def call(self) -> None:
        """One step."""
        self.step(self.ids)

    def step(self, ids: Tensor) -> None:
        """Forward and backward of some tokens."""
        if self.has_loss:
            loss = self.model(ids, labels=ids, **self.more).loss
        else:
            loss = base_model_of(self.model)[0](ids, **self.more).last_hidden_state.float().square().mean()
        loss.backward()

    def held(self) -> int:
        """Bytes that remain allocated between calls: gradients do, but are part of a call's peak."""
        return 0


CASES = {case.name: case for case in (Prefill, Decode, Train)}


def cropped(cache: Cache, length: int) -> bool:
    """Remove the newest tokens from a cache; False where that is impossible because others were evicted for them."""
    with suppress(PosEncError, RuntimeError, NotImplementedError):
        if new := cache.get_seq_length() - length:
            cache.crop(-new)
        return cache.get_seq_length() == length
    return False


def last_logits_only(model: nn.Module) -> bool:
    """Whether the head can compute the last token alone."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def last_of(model: Any) -> nn.Module | None:
    """The head over the vocabulary, if the model has one."""
    return model.get_output_embeddings()


def tensor_storages(cache: Any) -> dict[int, int]:
    """Bytes of every storage of a cache, by address: two tensors may share one."""
    found = {}
    for tensor in tensors_in([vars(layer) for layer in cache.layers]):
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes()
    return found


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Tensors in nested containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_in(one)
