"""Every cache class of the installed transformers is listed as supported or as refused; texts in cached chunks.

The classes come from `transformers.cache_utils`, so a new one fails here until it is added to a list.

"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, cache_utils
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache, StaticCache

from hf_posenc.checks import CHECKS, Case
from hf_posenc.checks.forward import forward, forward_in_chunks, max_deviation, random_tokens
from hf_posenc.checks.tiny_models import LAYERS, TRAINED_LENGTH, tiny_model
from hf_posenc.errors import BackendCannotCarry, InvalidInput, UnknownKeys

from .case_lists import CACHEABLE_ONE_PER_HOOKS, QUICK

LENGTH = TRAINED_LENGTH + 9
SIZES = [TRAINED_LENGTH // 2, 1, 1, 7, 1, 1, TRAINED_LENGTH // 2 - 2]
SHORT = 8  # a window shorter than the text

CORE = [("llama", scheme) for scheme in ("yarn", "alibi", "rerope", "dynamic_ntk", "sinks", "fox")]
Maker = Callable[[Any], Cache]


def layered(name: str, **settings: Any) -> Maker:
    """A cache of layers of one class."""
    return lambda _: Cache(layers=[getattr(cache_utils, name)(**settings) for _ in range(LAYERS)])


class LosslessLayer(cache_utils.QuantizedLayer):
    """A quantised layer without rounding."""

    def __init__(self) -> None:
        super().__init__(residual_length=6)

    def _quantize(self, tensor: Tensor, axis: int) -> Tensor:
        return tensor.clone()

    def _dequantize(self, q_tensor: Tensor) -> Tensor:
        return q_tensor


STATIC, WIDE = {"max_cache_len": LENGTH}, {"sliding_window": LENGTH + 1}
SUPPORTED: dict[str, Maker] = {
    "Cache": layered("DynamicLayer"),
    "DynamicCache": lambda config: DynamicCache(config=config),
    "StaticCache": lambda config: StaticCache(config=config, max_cache_len=LENGTH),
    "EncoderDecoderCache": lambda _: EncoderDecoderCache(DynamicCache(), DynamicCache()),
    "MtpCache": lambda config: cache_utils.MtpCache(config=config),
    "DFlashCache": lambda config: cache_utils.DFlashCache(config=config),
    "DynamicLayer": layered("DynamicLayer"),
    "DynamicIndexedLayer": layered("DynamicIndexedLayer"),
    "StaticLayer": layered("StaticLayer", **STATIC),
    "StaticIndexedLayer": layered("StaticIndexedLayer", **STATIC),
    "QuantizedLayer": lambda _: Cache(layers=[LosslessLayer() for _ in range(LAYERS)]),
    "LinearAttentionAndFullAttentionLayer": layered("LinearAttentionAndFullAttentionLayer"),
    "LinearAttentionAndStaticFullAttentionLayer": layered("LinearAttentionAndStaticFullAttentionLayer", **STATIC),
}
WITHIN_THE_WINDOW: dict[str, dict[str, int]] = {
    "DynamicSlidingWindowLayer": {},
    "StaticSlidingWindowLayer": STATIC,
    "LinearAttentionAndSlidingWindowAttentionLayer": {},
    "LinearAttentionAndStaticSlidingWindowAttentionLayer": STATIC,
}
REFUSED: dict[str, Maker] = {
    "LinearAttentionLayer": layered("LinearAttentionLayer"),
    "DummyLayer": layered("DummyLayer"),
}
ROUNDED = {"QuantizedCache", "Fp8QuantizedLayer"}  # supported up to their own rounding, tested below
BACKENDS = {"QuantoQuantizedLayer": "optimum", "HQQQuantizedLayer": "hqq"}
ABSTRACT = {"CacheLayerMixin", "LinearAttentionCacheLayerMixin", "BaseQuantizedLayer"}
NO_CACHE = {"KVSharingDict"}  # shared by layers within one forward pass

INSTALLED = {
    cls.__name__
    for cls in vars(cache_utils).values()
    if inspect.isclass(cls) and cls.__module__ == cache_utils.__name__
} - (ABSTRACT | NO_CACHE)


@lru_cache(maxsize=len(CORE))
def patched(family: str, scheme: str) -> tuple[Case, PreTrainedModel, Tensor, Tensor]:
    """A patched model, a text and its uncached outputs."""
    case = Case(family, scheme, factor=4)
    model = case.apply(case.fresh())
    tokens = random_tokens(model, case.clip_length(LENGTH, model))
    return case, model, tokens, forward(model, tokens)


def deviation(family: str, scheme: str, make: Maker) -> tuple[float, float]:
    """Deviation of cached chunks from one forward pass, and its tolerance."""
    case, model, tokens, expected = patched(family, scheme)
    return max_deviation(forward_in_chunks(model, tokens, make(model.config), SIZES), expected)[0], case.tolerance(
        "cache"
    )


def test_every_class_is_listed() -> None:
    lists = [set(SUPPORTED), set(WITHIN_THE_WINDOW), set(REFUSED), ROUNDED, set(BACKENDS)]
    assert set().union(*lists) >= INSTALLED, INSTALLED - set().union(*lists)
    assert sum(map(len, lists)) == len(set().union(*lists)), "a class is in two lists"


@pytest.mark.parametrize("name", sorted(set(SUPPORTED) & INSTALLED))
def test_supported(name: str) -> None:
    for family, scheme in CORE:
        if (name, scheme) == ("QuantizedLayer", "fox"):
            continue  # refused below
        value, tolerance = deviation(family, scheme, SUPPORTED[name])
        assert value <= tolerance, (family, scheme, value)


@pytest.mark.parametrize("name", sorted(set(WITHIN_THE_WINDOW) & INSTALLED))
def test_sliding_layers_are_supported_until_they_drop_keys(name: str) -> None:
    wide = layered(name, **WIDE, **WITHIN_THE_WINDOW[name] and {"max_cache_len": LENGTH + 1})
    narrow = layered(name, sliding_window=SHORT, **WITHIN_THE_WINDOW[name])
    for family, scheme in CORE:
        value, tolerance = deviation(family, scheme, wide)
        assert value <= tolerance, (family, scheme, value)
        with pytest.raises(InvalidInput, match=f"is a {name} that has dropped keys"):
            deviation(family, scheme, narrow)


@torch.no_grad()
def test_dropped_keys_change_outputs() -> None:
    """Control: the unpatched model continues without the dropped keys."""
    model = tiny_model("llama")
    tokens = random_tokens(model, LENGTH)
    narrow = layered("DynamicSlidingWindowLayer", sliding_window=SHORT)(model.config)
    assert max_deviation(forward_in_chunks(model, tokens, narrow, SIZES), forward(model, tokens))[0] > 0.1


@pytest.mark.parametrize("name", sorted(set(REFUSED) & INSTALLED))
def test_refused(name: str) -> None:
    for family, scheme in CORE:
        with pytest.raises(InvalidInput, match=f"is a {name}, which holds no keys"):
            deviation(family, scheme, REFUSED[name])


@pytest.mark.skipif("Fp8QuantizedLayer" not in INSTALLED, reason="this transformers has no quantised cache of its own")
def test_quantised_caches_lose_no_more_than_without_a_patch() -> None:
    """Eight-bit keys: a bias or several rotations of a key must not add to the rounding error."""

    def fp8(config: Any) -> Cache:
        return cache_utils.QuantizedCache("fp8", config)

    model = tiny_model("llama")
    tokens = random_tokens(model, LENGTH)
    stock, _ = max_deviation(forward_in_chunks(model, tokens, fp8(model.config), SIZES), forward(model, tokens))
    assert stock > 0.01  # it does round
    for family, scheme in CORE:
        if scheme in ("fox", "cope"):
            continue  # fox is refused below; cope sums rounded gates over all keys
        value, _ = deviation(family, scheme, fp8)
        assert value < 3 * stock, (family, scheme, value)


@pytest.mark.parametrize("scheme", ["fox", "cable"])
def test_gates_in_a_quantised_cache_are_refused(scheme: str) -> None:
    with pytest.raises(BackendCannotCarry, match=f"'{scheme}' stores gates beside the keys"):
        deviation("llama", scheme, SUPPORTED["QuantizedLayer"])


@pytest.mark.parametrize(("family", "scheme"), CORE)
def test_cache_from_tensors(family: str, scheme: str) -> None:
    """A cache made from tensors, as in data parallelism, has no provenance: outputs are right, with a warning."""
    case, model, tokens, expected = patched(family, scheme)
    half = 6  # fewer than any scheme evicts
    with torch.no_grad():
        first = model(tokens[:, :half], use_cache=True).past_key_values
    gathered = DynamicCache([(layer.keys, layer.values) for layer in first.layers])
    with pytest.warns(UnknownKeys, match=f"{half} tokens"):
        rest = forward(model, tokens[:, half:], past_key_values=gathered)
    assert max_deviation(rest, expected[:, half:])[0] <= case.tolerance("cache")


def test_batch_size_and_capacity() -> None:
    _, model, tokens, _ = patched("llama", "alibi")
    cache = SUPPORTED["DynamicCache"](model.config)
    forward(model, tokens[:, :5].repeat(3, 1), past_key_values=cache)
    with pytest.raises(InvalidInput, match="holds 3 rows, and the call has 1"):
        forward(model, tokens[:, 5:6], past_key_values=cache)
    small = StaticCache(config=model.config, max_cache_len=10)
    forward(model, tokens[:, :8], past_key_values=small)
    with pytest.raises(InvalidInput, match="room for 10 tokens, and holds 8 before 3 new ones"):
        forward(model, tokens[:, 8:11], past_key_values=small)
    assert forward(model, tokens[:, 8:10], past_key_values=small).isfinite().all()


CUTS = {
    "one token": 1,
    "just inside": TRAINED_LENGTH - 1,
    "just past": TRAINED_LENGTH + 1,
    "twice": 2 * TRAINED_LENGTH,
}


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("case", CACHEABLE_ONE_PER_HOOKS, ids=str)
def test_decoding_after_a_prefill(case: Case, cut: int) -> None:
    """Token by token after the first chunk."""
    deviation = CHECKS["cache"](case, cut=cut, step=1)
    assert deviation <= case.tolerance("cache"), deviation


@pytest.mark.parametrize("case", [case for case in CACHEABLE_ONE_PER_HOOKS if case in QUICK], ids=str)
def test_a_static_cache(case: Case) -> None:
    for deviation in (
        CHECKS["cache"](case, cache=StaticCache, cut=7, step=7),
        CHECKS["padded_decoding"](case, cache=StaticCache),
        CHECKS["cache_reorder"](case, cache=StaticCache),
    ):
        assert deviation <= case.tolerance(deviation.check), deviation
