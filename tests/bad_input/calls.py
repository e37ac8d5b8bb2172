"""Rows 57 to 59: what a forward call of a patched model may be given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import DynamicCache, StaticCache

from hf_posenc import errors
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.tiny_models import HEADS, WIDTH

from .row import NAN, Row, Scene

LENGTH = 6
TRIANGLE = torch.ones(LENGTH, LENGTH).tril().bool()[None, None]
POSITION_IDS = torch.arange(LENGTH)[None]
BAD, MASK = errors.InvalidInput, errors.MaskMismatch


def lowest(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The causal mask as numbers added to scores."""
    return torch.zeros(1, 1, LENGTH, LENGTH, dtype=dtype).masked_fill(~TRIANGLE, torch.finfo(dtype).min)


IDS: dict[str, tuple[Any, str]] = {
    "no axis": (torch.tensor(3), r"shape \(\).+\[batch, tokens\]"),
    "one axis": (torch.ones(LENGTH, dtype=torch.long), r"shape \(6,\).+\[batch, tokens\]"),
    "three axes": (torch.ones(1, 1, LENGTH, dtype=torch.long), r"shape \(1, 1, 6\)"),
    "no row": (torch.ones(0, LENGTH, dtype=torch.long), r"no tokens.+\(0, 6\)"),
    "no token": (torch.ones(1, 0, dtype=torch.long), r"no tokens.+\(1, 0\)"),
    "float": (torch.ones(1, LENGTH), r"float32.+input_ids\.long\(\)"),
    "bool": (torch.ones(1, LENGTH).bool(), r"bool.+long\(\)"),
    "uint8": (torch.ones(1, LENGTH).to(torch.uint8), r"uint8.+long\(\)"),
    "list": ([[3] * LENGTH], r"torch\.Tensor, got \[\[3"),
    "array": (torch.ones(1, LENGTH).long().numpy(), r"torch\.Tensor, got array"),
    "too large": (torch.full((1, LENGTH), 96), "Token 96 is outside the vocabulary"),
    "negative": (torch.full((1, LENGTH), -1), "Token -1"),
    "nothing": (None, "neither input_ids nor inputs_embeds|neither"),
}
VECTORS: dict[str, tuple[Any, str]] = {
    "two axes": (torch.zeros(LENGTH, WIDTH), r"\[batch, tokens, width\]"),
    "four axes": (torch.zeros(1, 1, LENGTH, WIDTH), r"\[batch, tokens, width\]"),
    "width": (torch.zeros(1, LENGTH, 3), "3 wide.+64"),
    "whole": (torch.zeros(1, LENGTH, WIDTH).long(), "int64.+input_ids"),
    "wider numbers": (torch.zeros(1, LENGTH, WIDTH).double(), r"float64.+float32.+to\(torch\.float32\)"),
}
POSITIONS: dict[str, tuple[Any, str]] = {
    "one axis": (POSITION_IDS[0], r"shape \(6,\)"),
    "rows": (POSITION_IDS.expand(3, -1), r"shape \(3, 6\).+1 rows of 6"),
    "rows of coordinates": (POSITION_IDS.expand(3, 3, -1), r"shape \(3, 3, 6\)"),
    "list": ([list(range(LENGTH))], "position_ids must be a torch.Tensor"),
    "complex": (POSITION_IDS + 0j, "complex64 values"),
    "float": (POSITION_IDS.float(), r"float32.+position_ids\.long\(\)"),
    "bool": (POSITION_IDS.bool(), "truth values"),
    "negative": (POSITION_IDS - 1, "Position -1"),
    "beyond": (POSITION_IDS + 2**31, "Position 2147483653 is beyond 2147483647"),
    "beyond float64": (POSITION_IDS + 2**62, "beyond 2147483647"),
}
MASKS: dict[str, tuple[Any, type[errors.PosEncError], str]] = {
    "list": ([[1] * LENGTH], BAD, "attention_mask must be a torch.Tensor"),
    "name": ("causal", BAD, "got 'causal'"),
    "mapping": ({"full_attention": TRIANGLE}, BAD, "must be a torch.Tensor"),
    "no axis": (torch.tensor(1), MASK, r"shape \(\)"),
    "one axis": (torch.ones(LENGTH), MASK, r"shape \(6,\).+\[batch, keys\]"),
    "three axes": (torch.ones(1, LENGTH, LENGTH), MASK, r"\[batch, 1 or heads, tokens, keys\]"),
    "five axes": (TRIANGLE[None], MASK, r"shape \(1, 1, 1, 6, 6\)"),
    "rows": (torch.ones(3, LENGTH), MASK, r"shape \(3, 6\).+1 rows of 6"),
    "NaN": (torch.full((1, LENGTH), NAN), BAD, "holds nan.+1 at real tokens"),
    "half": (torch.full((1, LENGTH), 0.5), BAD, r"holds 0\.5"),
    "numbers of documents": (torch.tensor([[1, 1, 2, 2, 3, 3]]), BAD, "holds 2"),
    "added to scores": (torch.tensor([[0.0] * 5 + [-1e9]]), BAD, "holds -1000000000.0"),
    "complex": (torch.ones(1, LENGTH) + 0j, BAD, "complex"),
    "rows of four axes": (TRIANGLE.expand(3, 1, -1, -1), MASK, r"shape \(3, 1, 6, 6\)"),
    "heads": (TRIANGLE.expand(1, 3, -1, -1), MASK, rf"1 or {HEADS}, 6, keys"),
    "queries": (TRIANGLE[:, :, :3], MASK, r"shape \(1, 1, 3, 6\)"),
    "wide": (torch.nn.functional.pad(TRIANGLE, (0, 2)), MASK, "8 columns.+there are 6 keys"),
    "whole numbers": (TRIANGLE.long(), MASK, r"int64.+attention_mask\.bool\(\)"),
    "zeros and ones": (TRIANGLE.float(), BAD, r"zeros and ones.+attention_mask\.bool\(\)"),
    "NaN in four axes": (lowest() * NAN, BAD, "four axes holds nan"),
    "infinite": (torch.full((1, 1, LENGTH, LENGTH), torch.inf), BAD, "holds inf"),
}
CACHES: dict[str, tuple[Any, str]] = {
    "tuple": (((torch.zeros(1, 2, 3, 16),) * 2,) * 2, "Cache of transformers, got"),
    "name": ("dynamic", "got 'dynamic'"),
    "class": (DynamicCache, "got <class"),
}


def called(**call: Any) -> Callable[[Scene], object]:
    """Read a text with other keywords, caching nothing unless a cache is given."""
    return lambda scene: scene.model(**({"input_ids": random_tokens(scene.model, LENGTH)} | call))


def continued(rows: int, kind: str, **size: int) -> Callable[[Scene], object]:
    """Go on, with one row, from a cache that was filled with ``rows``."""

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
    """All of them; every other scheme reads positions by rotation, the rest by a bias."""
    found: list[Row] = []
    patches: list[tuple[str, dict[str, Any]]] = [("yarn", {"factor": 2}), ("alibi", {})]
    tables: tuple[tuple[str, dict[str, Any]], ...] = (
        ("input_ids", {name: (value, BAD, message) for name, (value, message) in IDS.items()}),
        ("position_ids", {name: (value, BAD, message) for name, (value, message) in POSITIONS.items()}),
        ("attention_mask", MASKS),
        ("past_key_values", {name: (value, BAD, message) for name, (value, message) in CACHES.items()}),
    )
    for argument, table in tables:
        for number, (name, (value, error, message)) in enumerate(table.items()):
            patch = patches[number % 2]
            found.append(Row(57, f"{argument} {name}", error, message, called(**{argument: value}), patch=patch))
    found += [
        Row(57, f"inputs_embeds {name}", BAD, message, called(input_ids=None, inputs_embeds=value), patch=patches[0])
        for name, (value, message) in VECTORS.items()
    ]
    full = {"max_cache_len": 2 * LENGTH - 1}
    found += [
        Row(57, "both", BAD, "both input_ids", called(inputs_embeds=torch.zeros(1, LENGTH, WIDTH)), patch=patches[0]),
        Row(58, "cache of other rows", BAD, "holds 3 rows, and the call has 1", continued(3, "dynamic"),
            patch=patches[1]),
        Row(58, "static of other rows", BAD, "2 rows.+has 1", continued(2, "static", max_cache_len=40),
            patch=patches[0]),
        Row(58, "static too small", BAD, "room for 11.+holds 6 before 6.+12", continued(1, "static", **full),
            patch=patches[1]),
        Row(58, "static smaller than a text", BAD, "room for 3 tokens", continued(1, "static", max_cache_len=3),
            patch=patches[0]),
        Row(58, "fewer layers", BAD, "1 layers, and this model 2", fewer_layers, patch=patches[0]),
    ]  # fmt: skip
    for kind in ("bert", "gpt2"):
        found += [
            Row(59, f"{kind} three axes", MASK, r"\(1, 6, 6\)", called(attention_mask=torch.ones(1, LENGTH, LENGTH)),
                model_type=kind, patch=("rope", {})),
            Row(59, f"{kind} one axis", BAD, r"\(6,\)", called(input_ids=torch.ones(LENGTH).long()), model_type=kind,
                patch=("rope", {})),
        ]  # fmt: skip
    return found
