"""Benchmark cases: prefill, decoding of one token, and a training step.

``module`` is what a case calls, and what `torch.compile` compiles.
"""

from __future__ import annotations

import copy
import inspect
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from hf_posenc.core.memory import tensors_in
from hf_posenc.errors import PosEncError
from hf_posenc.forward.host_calls import cache_argument
from hf_posenc.patching.state import base_model_of

CHUNK = 512  # tokens per forward pass that fills the cache before decoding
TINY = 16  # tokens of the warm-up call


class WholeText:
    """Base of the cases in which every call reads whole rows."""

    decodes = False

    def reset(self) -> None:
        """Nothing to reset if calls do not depend on each other."""

    def held(self) -> int:
        """Return the bytes that stay allocated between calls; gradients are part of a call's peak."""
        return 0


class Prefill(WholeText):
    """Prefill, the forward pass before the first new token: fill the KV cache and compute the last token's logits.

    An encoder runs without its head, which does not depend on position and whose logits can take most of the memory.
    """

    def __init__(self, model: nn.Module, ids: Tensor) -> None:
        self.ids = ids
        if last_logits_only(model):
            self.module, self.more = model.eval(), {"use_cache": True, "logits_to_keep": 1}
        else:
            self.module, self.more = base_model_of(model.eval())[0], {}
        self.run(ids[:, :TINY])

    def call(self) -> None:
        """Run the forward pass."""
        self.run(self.ids)

    def run(self, ids: Tensor) -> None:
        """Run the forward pass over some rows."""
        with torch.inference_mode():
            self.module(ids, **self.more)


class Decode:
    """Decode one token after a cached text.

    ``reset`` crops the cache to the text and decodes one untimed token. Some caches allocate memory, copy keys or
    rotate them anew after a round number of tokens. The untimed token pays for that, and the timed one is typical.
    """

    decodes = True

    def __init__(self, model: nn.Module, ids: Tensor) -> None:
        self.module, self.token, self.filled = model.eval(), ids[:, :1], ids.shape[1]
        self.more = {"logits_to_keep": 1} if last_logits_only(model) else {}
        self.cache = DynamicCache()
        for chunk in ids.split(CHUNK, dim=1):
            self.append(chunk)
        filled_cache = copy.deepcopy(self.cache)
        self.call()
        self.filled_cache = None if self.crop() else filled_cache

    def reset(self) -> None:
        """Restore the filled cache and decode one more token."""
        if self.filled_cache is not None:
            self.cache = copy.deepcopy(self.filled_cache)
        else:
            self.crop()
        self.call()

    def crop(self) -> bool:
        """Remove the newest tokens from the cache; return False if that cannot restore tokens evicted for them."""
        with suppress(PosEncError, RuntimeError, NotImplementedError):
            if new := self.cache.get_seq_length() - self.filled:
                self.cache.crop(-new)
            return self.cache.get_seq_length() == self.filled
        return False

    def call(self) -> None:
        """Decode one token."""
        self.append(self.token)

    def append(self, ids: Tensor) -> None:
        """Run the model on tokens that follow those in the cache."""
        cache = cache_argument(type(base_model_of(self.module)[0]), self.cache)
        with torch.inference_mode():
            self.module(ids, use_cache=True, **cache, **self.more)

    def held(self) -> int:
        """Return the bytes of the cache; tensors that share a storage count once."""
        storages = [tensor.untyped_storage() for tensor in tensors_in([vars(layer) for layer in self.cache.layers])]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


class Train(WholeText):
    """Training step without optimiser: forward and backward pass of the loss; without a head, of the mean square."""

    def __init__(self, model: Any, ids: Tensor) -> None:
        accepts = inspect.signature(model.forward).parameters
        self.has_loss = "labels" in accepts and model.get_output_embeddings() is not None
        self.ids = ids
        self.module = model.train() if self.has_loss else base_model_of(model.train())[0]
        self.more = {"use_cache": False} if "use_cache" in accepts else {}
        self.step(ids[:, :TINY])
        self.reset()

    def reset(self) -> None:
        """Drop the gradients."""
        self.module.zero_grad(set_to_none=True)

    def call(self) -> None:
        """Run one step."""
        self.step(self.ids)

    def step(self, ids: Tensor) -> None:
        """Run forward and backward pass on some rows."""
        if self.has_loss:
            loss = self.module(ids, labels=ids, **self.more).loss
        else:
            states = self.module(ids, **self.more).last_hidden_state
            loss = states.float().square().mean()
        loss.backward()


Case = Prefill | Decode | Train
CASES: dict[str, type[Case]] = {"prefill": Prefill, "decode": Decode, "train": Train}


def last_logits_only(model: nn.Module) -> bool:
    """Whether the head can compute the logits of the last token only."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters
