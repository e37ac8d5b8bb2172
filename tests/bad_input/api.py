"""Rows of bad input: arguments of the functions that patch, describe, export and register."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import nn

import hf_posenc
from hf_posenc import errors
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.tiny_models import TRAINED_LENGTH

from .row import INF, NAN, Act, Errors, Row, Scene, patching

LENGTH, OPTION, UNKNOWN = errors.LengthContradiction, errors.OptionOutOfRange, errors.UnknownScheme
YARN: tuple[str, dict[str, Any]] = ("yarn", {"factor": 2})


def endless() -> list[Any]:
    """A list that contains itself."""
    made: list[Any] = []
    made.append(made)
    return made


SCHEMES: dict[str, tuple[Any, Errors, str]] = {
    "near": ("yarm", UNKNOWN, "Did you mean 'yarn'"),
    "module": ("os:system", UNKNOWN, "os:system"),
    "escape code": ("\x1b[31myarn", UNKNOWN, "x1b"),
    "a thousand parts": ("+".join(["logn"] * 1000), errors.CannotCombine, "16"),
    "None": (None, UNKNOWN, "None"),
    "empty list": ([], UNKNOWN, ""),
    "other class": (int, UNKNOWN, "int"),
    "bare class": (hf_posenc.Scheme, UNKNOWN, "Scheme"),
    "list in itself": (endless(), UNKNOWN, ""),
    "rows between rows": ("deberta+cape", errors.FractionalPosition, "whole positions"),
    "one table beside a gate a layer": (["fox", ("t5", {"share_layers": True})], OPTION, "share_layers=True"),
    "one function beside a gate a layer": ([("fire", {"share_layers": True}), "fox"], OPTION, "share_layers=True"),
    "shared rows beside a gate a layer": ([("cope", {"per_layer": False}), "fox"], OPTION, "per_layer=False"),
    "shared biases beside a gate a layer": ([("transformer_xl", {"share_uv": True}), "fox"], OPTION, "share_uv=True"),
}
FACTORS: list[Any] = [0.5, NAN, INF, True, "8", 1e7, torch.tensor(8.0)]
NOT_LENGTHS: list[Any] = [64.0, "64", True, 0, 2**31]
LAYERS: dict[str, Any] = {
    "'99'": {99: "none"}, "'a'": {"a": "none"}, "layer 1 twice": {"1": "none", "::1": "rope"}, "'::0'": {"::0": "none"},
    "1.5": {1.5: "none"}, "None": {None: "none"}, r"\[1\]": [1],
}  # fmt: skip


def foreign(scene: Scene) -> object:
    """Another package has replaced ``forward`` on an instance."""
    model = copy.deepcopy(scene.model)
    attention = model.model.layers[1].self_attn
    attention.forward = partial(attention.forward)
    return hf_posenc.patch_model(model, "yarn", factor=2)


def poisoned(value: float, weight: str = "layers.1.self_attn.q_proj.weight") -> Act:
    """Patch a model with one number of a weight set to ``value``."""

    def act(scene: Scene) -> object:
        model = copy.deepcopy(scene.model)
        dict(model.model.named_parameters())[weight].data.view(-1)[3] = value
        return hf_posenc.patch_model(model, "yarn", factor=2)

    return act


def continued(scene: Scene) -> object:
    """Continue a cached text under a scheme whose positions all depend on the text length."""
    ids = random_tokens(scene.model, 6)
    cache = scene.model(ids, use_cache=True).past_key_values
    return scene.model(ids[:, :1], past_key_values=cache)


def beyond(scene: Scene) -> object:
    """Read a text that is longer than the model's table."""
    return scene.model(random_tokens(scene.model, 5000))


def values() -> list[Row]:
    """Rows about schemes, factors, lengths, layers and names."""
    found = [Row(f"scheme {name}", error, key, patching(scheme)) for name, (scheme, error, key) in SCHEMES.items()]
    found += [Row(f"factor {value!r}", LENGTH, "factor", patching("yarn", factor=value)) for value in FACTORS]
    found += [
        Row(f"{option} {value!r}", LENGTH, option, patching("yarn", **{option: value}))
        for option in ("target_length", "trained_length")
        for value in NOT_LENGTHS
    ]
    found += [
        Row(f"layers {layers}", OPTION, key, patching("yarn", factor=2, layers=layers))
        for key, layers in LAYERS.items()
    ]
    return found


def models() -> list[Row]:
    """Rows about objects that are not models, or not patched."""
    takers = {
        "unpatch": hf_posenc.unpatch_model,
        "describe": hf_posenc.describe,
        "scheme_of": hf_posenc.scheme_of,
        "patch": lambda model: hf_posenc.patch_model(model, "yarn"),
        "export": lambda model: hf_posenc.export(model, "nowhere"),
    }
    found = [
        Row(f"{name} of {type(model).__name__}", errors.UnsupportedModel, key, lambda _, t=taker, m=model: t(m))
        for name, taker in takers.items()
        for model, key in ((None, "None"), (nn.Linear(2, 2), "AttentionInterface"))
    ]
    bare, folder = errors.NotPatched, errors.FolderUnusable
    return [
        *found,
        Row("export of a path", errors.ModelNotFound, "folder", lambda s: hf_posenc.export("a/path", s.folder)),
        Row("nothing to undo", bare, "scheme", lambda s: hf_posenc.unpatch_model(s.model)),
        Row("nothing to export", bare, "scheme", lambda s: hf_posenc.export(s.model, s.folder)),
        Row("into a file", folder, "file", lambda s: hf_posenc.export(s.model, s.saved["file"]), patch=YARN),
        Row(
            "not expressible", errors.NotExpressible, "alibi", lambda s: hf_posenc.export(s.model, s.folder),
            patch=("alibi", {}),
        ),
    ]  # fmt: skip


def rows() -> list[Row]:
    """All of them."""
    undefined, twice = errors.SchemeNotDefined, errors.AlreadyPatched
    longrope = partial(patching, "longrope", factor=2)
    return [
        *values(),
        *models(),
        Row("contradiction", LENGTH, "target_length is 100", patching("yarn", factor=8, target_length=100)),
        Row("unknown scheme of a layer", UNKNOWN, "'non'", patching("yarn", layers={0: "non"})),
        Row("option", errors.UnknownOption, "Did you mean 'beta_fast'", patching("yarn", factor=8, beta_fst=1)),
        Row("beta_fast below beta_slow", OPTION, "beta_fast", patching("yarn", beta_fast=1.0, beta_slow=2.0)),
        Row("factors too short", OPTION, "short_factor", longrope(short_factor=[1.0], long_factor=[1.0])),
        Row("window of everything", OPTION, "window", patching("self_extend", factor=2, window=TRAINED_LENGTH)),
        Row("two rotations", errors.CannotCombine, "", patching("rope+yarn")),
        Row("positions and none", errors.CannotCombine, "'none' only", patching("alibi+none")),
        Row("positions that one layer stops", errors.CannotCombine, "", patching("rope+randpos", layers={0: "none"})),
        Row("positions that no layer reads", errors.CannotCombine, "'pose' changes", patching("none+pose")),
        Row("positions that one layer moves", errors.CannotCombine, "", patching("rope", layers={0: "rope+randpos"})),
        Row("option of no part", errors.UnknownOption, "windw", patching("yarn+logn", windw=3)),
        Row("nothing to remap", undefined, "rope", patching("rerope"), "gpt2"),
        Row("target below trained", LENGTH, "8", patching("yarn", target_length=8)),
        Row("past a table", errors.PositionOutOfTable, "32", beyond, "bert", ("learned", {})),
        Row("the same twice", errors.CannotCombine, "rotation", patching("yarn+yarn", factor=2)),
        Row("of decoders", undefined, "decoder", patching("rope+dca", factor=2), model_type="bert"),
        Row("patched with the same", twice, "'yarn'", patching("yarn", factor=2), patch=YARN),
        Row("own forward", errors.ForeignPatch, "forward", foreign),
        Row("table", (OPTION, errors.PositionOutOfTable), "32", patching("learned", target_length=5000), "gpt2"),
        Row("continued", errors.NeedsWholeText, "use_cache=False", continued, patch=("norm01", {})),
        Row("NaN weight", errors.WeightsNotFinite, "q_proj", poisoned(NAN)),
    ]
