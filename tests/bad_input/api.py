"""What Python code may pass to the functions that patch, describe, export and register."""

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
    """A list that holds itself."""
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
}
FACTORS: list[Any] = [0.5, NAN, INF, True, "8", 1e7, torch.tensor(8.0)]
NOT_LENGTHS: list[Any] = [64.0, "64", True, 0, 2**31]
LAYERS: dict[str, Any] = {
    "'99'": {99: "none"}, "'a'": {"a": "none"}, "layer 1 twice": {"1": "none", "::1": "rope"}, "'::0'": {"::0": "none"},
    "1.5": {1.5: "none"}, "None": {None: "none"}, r"\[1\]": [1],
}  # fmt: skip


def foreign(scene: Scene) -> object:
    """Somebody else has put a forward on an instance."""
    model = copy.deepcopy(scene.model)
    attention = model.model.layers[1].self_attn
    attention.forward = partial(attention.forward)
    return hf_posenc.patch_model(model, "yarn", factor=2)


def half(scene: Scene) -> object:
    """A stage of a pipeline: half of the layers."""
    stage = copy.deepcopy(scene.model)
    stage.model.layers = stage.model.layers[:1]
    return hf_posenc.patch_model(stage, "yarn", factor=2)


def poisoned(value: float, weight: str = "layers.1.self_attn.q_proj.weight") -> Act:
    """One number of one weight is none."""

    def act(scene: Scene) -> object:
        model = copy.deepcopy(scene.model)
        dict(model.model.named_parameters())[weight].data.view(-1)[3] = value
        return hf_posenc.patch_model(model, "yarn", factor=2)

    return act


def cast_backend(scene: Scene) -> object:
    """A backend that carries no bias, put in without transformers' own check."""
    config = scene.model.base_model.config
    before, config._attn_implementation = config._attn_implementation, "flash_attention_2"
    try:
        hidden = torch.zeros(1, 4, 64)
        return scene.model.model.layers[0].self_attn(hidden, position_ids=torch.arange(4)[None])
    finally:
        config._attn_implementation = before


def continued(scene: Scene) -> object:
    """A cached text goes on, although every position depends on its length."""
    ids = random_tokens(scene.model, 6)
    cache = scene.model(ids, use_cache=True).past_key_values
    return scene.model(ids[:, :1], past_key_values=cache)


def registered(name: Any) -> object:
    """A third party's scheme under a bad name."""

    class Odd(hf_posenc.Scheme):
        """A thing."""

    return hf_posenc.register_scheme(name)(Odd)


def values() -> list[Row]:
    """Schemes, factors, lengths, layers and names."""
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
    found += [
        Row(f"starter {value!r}", errors.UnknownStarter, "llama", lambda _, v=value: hf_posenc.load_starter(v))
        for value in (None, "lama", "../llama")
    ]
    found += [
        Row(f"register {value!r}", errors.NameNotAllowed, "name", lambda _, v=value: registered(v))
        for value in ("", "a b", "../x", None, "x" * 100, "yarn")
    ]
    return found


def models() -> list[Row]:
    """What is no model, or carries no scheme."""
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
        Row("into None", errors.WrongKind, "None", lambda s: hf_posenc.export(s.model, None), patch=YARN),
        Row(
            "not expressible", errors.NotExpressible, "alibi", lambda s: hf_posenc.export(s.model, s.folder),
            patch=("alibi", {}),
        ),
    ]  # fmt: skip


def rows() -> list[Row]:
    """All of them."""
    undefined, twice, backend = errors.SchemeNotDefined, errors.AlreadyPatched, errors.BackendCannotCarry
    longrope = partial(patching, "longrope", factor=2)
    return [
        *values(),
        *models(),
        Row("contradiction", LENGTH, "target_length is 100", patching("yarn", factor=8, target_length=100)),
        Row("unknown scheme of a layer", UNKNOWN, "'non'", patching("yarn", layers={0: "non"})),
        Row("option", errors.UnknownOption, "Did you mean 'beta_fast'", patching("yarn", factor=8, beta_fst=1)),
        Row("beta_fast below beta_slow", OPTION, "beta_fast", patching("yarn", beta_fast=1.0, beta_slow=2.0)),
        Row("factors too short", OPTION, "short_factor", longrope(short_factor=[1.0], long_factor=[1.0])),
        Row("factors of nan", OPTION, "long_factor", longrope(long_factor=[NAN] * 8)),
        Row("window of everything", OPTION, "window", patching("self_extend", factor=2, window=TRAINED_LENGTH)),
        Row("beyond the head", OPTION, "rotary_dim", patching("rope", rotary_dim=64)),
        Row("negative slope", OPTION, "slopes", patching("alibi", slopes=[0.5, 1.0, 1.0, -1.0])),
        Row("two rotations", errors.CannotCombine, "", patching("rope+yarn")),
        Row("the same twice", errors.CannotCombine, "rotation", patching("yarn+yarn", factor=2)),
        Row("of decoders", undefined, "decoder", patching("rope+dca", factor=2), model_type="bert"),
        Row("patched with the same", twice, "'yarn'", patching("yarn", factor=2), patch=YARN),
        Row("patched with another", twice, "'yarn'", patching("alibi"), patch=YARN),
        Row("own forward", errors.ForeignPatch, "forward", foreign),
        Row("half of the layers", errors.UnsupportedModel, "1 attention layers", half),
        Row("table", (OPTION, errors.PositionOutOfTable), "32", patching("learned", target_length=5000), "gpt2"),
        Row("continued", errors.NeedsWholeText, "use_cache=False", continued, patch=("norm01", {})),
        Row("backend", backend, "flash_attention_2", cast_backend, patch=("alibi", {})),
        Row("NaN weight", errors.WeightsNotFinite, "q_proj", poisoned(NAN)),
        Row("NaN norm", errors.WeightsNotFinite, "norm", poisoned(INF, "layers.0.input_layernorm.weight")),
    ]
