"""Rows of bad input: arguments of a patched model's forward."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache, StaticCache

from hf_posenc import errors
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.tiny_models import VOCABULARY, WIDTH

from .row import NAN, Act, Row, Scene

LENGTH = 6
TRIANGLE = torch.ones(LENGTH, LENGTH).tril().bool()[None, None]
IDS = torch.ones(1, LENGTH, dtype=torch.long)
POSITIONS = torch.arange(LENGTH)[None]
BAD, MASK = errors.InvalidInput, errors.MaskMismatch

CALLS: list[tuple[str, dict[str, Any], type[errors.PosEncError], str]] = [
    ("ids of one axis", {"input_ids": IDS[0]}, BAD, r"\(6,\)"),
    ("no token", {"input_ids": IDS[:, :0]}, BAD, "no tokens"),
    ("float ids", {"input_ids": IDS.float()}, BAD, "float32"),
    ("past the vocabulary", {"input_ids": IDS * VOCABULARY}, BAD, f"Token {VOCABULARY}"),
    ("nothing", {"input_ids": None}, BAD, "neither"),
    ("both", {"inputs_embeds": torch.zeros(1, LENGTH, WIDTH)}, BAD, "both"),
    ("too few positions", {"position_ids": POSITIONS[:, :5]}, BAD, r"\(1, 5\)"),
    ("positions of other rows", {"position_ids": POSITIONS.expand(3, -1)}, BAD, r"\(3, 6\)"),
    ("fractional positions", {"position_ids": POSITIONS + 0.5}, BAD, "float"),
    ("negative position", {"position_ids": POSITIONS - 1}, BAD, "-1"),
    ("position beyond", {"position_ids": POSITIONS + 2**62}, BAD, "2147483647"),
    ("mask of a name", {"attention_mask": "causal"}, BAD, "'causal'"),
    ("mask of other rows", {"attention_mask": torch.ones(3, LENGTH)}, MASK, r"\(3, 6\)"),
    ("narrow mask", {"attention_mask": torch.ones(1, 3)}, MASK, "3 wide"),
    ("wide mask", {"attention_mask": torch.ones(1, 9)}, MASK, "9 wide"),
    ("row of padding", {"attention_mask": IDS * 0}, BAD, "row 0"),
    ("mask of NaN", {"attention_mask": torch.full((1, LENGTH), NAN)}, BAD, "nan"),
    ("mask of halves", {"attention_mask": torch.full((1, LENGTH), 0.5)}, BAD, "0.5"),
    ("mask of documents", {"attention_mask": torch.tensor([[1, 1, 2, 2, 3, 3]])}, BAD, "2"),
    ("mask of other heads", {"attention_mask": TRIANGLE.expand(1, 3, -1, -1)}, MASK, "heads|1 or"),
    ("wide mask of four axes", {"attention_mask": torch.nn.functional.pad(TRIANGLE, (0, 2))}, MASK, "8"),
    ("zeros and ones of four axes", {"attention_mask": TRIANGLE.float()}, BAD, "bool"),
    ("infinite mask", {"attention_mask": torch.full((1, 1, LENGTH, LENGTH), torch.inf)}, BAD, "inf"),
    ("cache of tuples", {"past_key_values": ((torch.zeros(1, 2, 3, 16),) * 2,) * 2}, BAD, "Cache"),
]  # fmt: skip


def called(**call: Any) -> Act:
    """Run a forward pass with other keywords, without a cache unless one is given."""
    return lambda scene: scene.model(**({"input_ids": random_tokens(scene.model, LENGTH)} | call))


def continued(rows: int, kind: str, **size: int) -> Act:
    """Continue one row from a cache that was filled with ``rows``."""

    def act(scene: Scene) -> object:
        cache = StaticCache(config=scene.model.config, **size) if kind == "static" else DynamicCache()
        scene.model(random_tokens(scene.model, LENGTH, rows=rows), past_key_values=cache)
        return scene.model(random_tokens(scene.model, LENGTH), past_key_values=cache)

    return act


def fewer_layers(scene: Scene) -> object:
    """A cache made from the configuration of a smaller model."""
    cache = DynamicCache(config=scene.model.config)
    cache.layers = cache.layers[:1]
    return scene.model(random_tokens(scene.model, LENGTH), past_key_values=cache)


def rows() -> list[Row]:
    """All rows; models alternate between a rotation and a bias."""
    patches: list[tuple[str, dict[str, Any]]] = [("yarn", {"factor": 2}), ("alibi", {})]
    found = [
        Row(name, error, key, called(**call), patch=patches[number % 2])
        for number, (name, call, error, key) in enumerate(CALLS)
    ]
    rotated, biased = patches
    return [
        *found,
        Row("cache of other rows", BAD, "3 rows", continued(3, "dynamic"), patch=biased),
        Row("static of other rows", BAD, "2 rows", continued(2, "static", max_cache_len=40), patch=rotated),
        Row("static too small", BAD, "room", continued(1, "static", max_cache_len=2 * LENGTH - 1), patch=biased),
        Row("fewer layers", BAD, "1 layers", fewer_layers, patch=rotated),
        Row("bert", MASK, "6, 6", called(attention_mask=torch.ones(1, LENGTH, LENGTH)), "bert", ("rope", {})),
    ]
