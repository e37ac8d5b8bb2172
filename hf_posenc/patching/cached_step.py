"""Check that a patched model reads a text in two parts as it reads it at once, on the installed transformers.

Which keyword a model has for its KV cache, and what its mask functions make of it, changes with the versions of
transformers. A cache that gets lost raises nothing: the model forgets what it has read. So the first model of each
class that a process patches is checked, on a stand-in of two heads with random weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.cache.prepare import own_cache_class
from hf_posenc.core.tested_versions import beyond_tested, tested_versions
from hf_posenc.errors import HostChanged
from hf_posenc.forward.host_calls import cache_argument, cache_name, cache_of
from hf_posenc.forward.positions import KEYWORD
from hf_posenc.patches.general.blindness import deviation
from hf_posenc.patches.general.observer import inputs_of
from hf_posenc.patches.general.stand_in import fill, weightless

TOKENS = 8
LIMIT = 1e-3  # of the spread of the outputs; rounding is a hundredth of it, a lost cache a thousand times it
HEADS, NARROW, WIDE = 2, 64, 1024
FEED_FORWARD = ("intermediate_size", "moe_intermediate_size", "n_inner", "ffn_dim", "encoder_ffn_dim", "d_ff")
STAND_IN = "posenc_stand_in"  # of a base model that is checked itself
_checked: set[type[nn.Module]] = set()


def check_cached_step(base: nn.Module, patch: Callable[[nn.Module], Any]) -> None:
    """Refuse a class of base models whose KV cache gets lost when it is patched; once a class and process.

    Args:
        base: not patched yet.
        patch: installs some scheme in a model.

    Raises:
        HostChanged: a patched model of this class cannot be called, or reads in two parts otherwise than at once.

    Warns:
        UntestedVersion: transformers is newer than this package is tested with.
    """
    if type(base) in _checked or STAND_IN in vars(base):
        return
    beyond_tested("transformers")
    if cache_name(type(base)) is None and own_cache_class(type(base)) is not None:
        cache_argument(type(base), base)  # raises
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = small_model(base)
        if model is not None:
            refuse_lost_cache(model, patch)
    _checked.add(type(base))


def small_model(base: nn.Module) -> nn.Module | None:
    """A stand-in of few and narrow heads; None of a class that cannot be made so."""
    config: Any = base.config
    backend = config._attn_implementation
    if backend not in ("eager", "sdpa"):
        backend = "sdpa" if base._supports_sdpa else "eager"
    forms: list[Callable[[Any], Any]] = (
        [narrowed, copy.deepcopy] if getattr(config, "hidden_size", WIDE) < WIDE else [narrowed]
    )
    for form in forms:
        with suppress(Exception):  # whatever the constructor of a class raises
            model = weightless(type(base), form(config), backend).eval()
            fill(model)
            model(**call_of(model))
            model.__dict__[STAND_IN] = True
            return model
    return None


def narrowed(config: Any) -> Any:
    """A copy of a configuration with two heads of the same width, which a rotation is made for."""
    own = copy.deepcopy(config)
    heads, kv_heads = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    own.hidden_size, own.num_attention_heads = HEADS * head_dim, HEADS
    if kv_heads is not None:
        own.num_key_value_heads = HEADS if kv_heads == heads else 1
    for name in FEED_FORWARD:
        if isinstance(getattr(config, name, None), int):
            setattr(own, name, NARROW)
    return own


def refuse_lost_cache(model: Any, patch: Callable[[nn.Module], Any]) -> None:
    """Raises `HostChanged` where a patched model reads a text in two parts otherwise than at once."""
    name = type(model).__name__
    remedy = f"Install transformers{tested_versions('transformers')}; if one of these is installed, report this."
    call = call_of(model)
    try:
        continues = deviation(in_two_parts(model, call), model(**call)[0]) < LIMIT  # encoders do not
        patch(model)
    except Exception:  # the patch of the model itself says what is wrong, if it is not this scheme
        return
    try:
        whole = model(**call)[0]
        change = deviation(in_two_parts(model, call), whole) if continues else 0.0
    except HostChanged:
        raise
    except Exception as error:
        said = " ".join(str(error).split()).rstrip(" .:!")[:150]
        raise HostChanged(f"A patched {name} cannot be called: {type(error).__name__}: {said}. {remedy}") from error
    if not change < LIMIT:
        raise HostChanged(
            f"A patched {name} reads a text in two parts otherwise than at once, by {change:.1e} of the spread of its "
            f"outputs: its KV cache is not what this package takes it for. {remedy}"
        )


def call_of(model: Any) -> dict[str, Any]:
    """A call on a few tokens, by name."""
    return {name: value for name, value in inputs_of(model, torch.arange(TOKENS)[None]).items() if name != KEYWORD}


def in_two_parts(model: Any, call: dict[str, Any]) -> Tensor:
    """Hidden states ``[1, token, width]`` of a text whose second half is read with the keys of the first in a cache."""
    found, cache = [], None
    for part in (slice(0, TOKENS // 2), slice(TOKENS // 2, TOKENS)):
        given = {key: value[:, part] if isinstance(value, Tensor) else value for key, value in call.items()}
        out = model(**{**given, "use_cache": cache_name(type(model)) is not None, **cache_argument(type(model), cache)})
        cache = cache_of(out)
        found.append(out[0])
    return torch.cat(found, dim=1)
