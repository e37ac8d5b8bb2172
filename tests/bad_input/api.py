"""Rows 1 to 34: what Python code may pass."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import MistralConfig, MistralModel

import hf_posenc
from hf_posenc import errors
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, VOCABULARY

from .row import INF, NAN, Errors, Row, Scene, patching

SIZES = ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "num_key_value_heads")
LENGTH, OPTION, UNKNOWN = errors.LengthContradiction, errors.OptionOutOfRange, errors.UnknownScheme


class Unspeakable:
    """Its own repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def endless() -> list[Any]:
    """A list that holds itself."""
    made: list[Any] = []
    made.append(made)
    return made


SCHEMES = {
    "near": ("yarm", UNKNOWN, "'yarm'.+Did you mean 'yarn'"),
    "near in capitals": ("YARM", UNKNOWN, "'yarn'"),
    "in other letters": ("ＹＡＲＮ", UNKNOWN, "ＹＡＲＮ"),
    "path": ("../yarn", UNKNOWN, r"'\.\./yarn'"),
    "module": ("os:system", UNKNOWN, "os:system"),
    "NUL": ("yarn\x00", UNKNOWN, r"x00"),
    "escape code": ("\x1b[31myarn", UNKNOWN, r"x1b"),
    "right to left": ("yarn\u202e", UNKNOWN, r"u202e"),
    "a million letters": ("x" * 10**6, UNKNOWN, "xxx…"),
    "half a composition": ("yarn+", UNKNOWN, "''"),
    "a thousand parts": ("+".join(["logn"] * 1000), errors.CannotCombine, "at most 16"),
}
NOT_SCHEMES = {
    "empty": "",
    "blank": " ",
    "None": None,
    "number": 7,
    "share": 3.5,
    "bytes": b"yarn",
    "mapping": {"yarn": {}},
    "empty list": [],
    "set": {"yarn"},
    "other class": int,
    "bare class": hf_posenc.Scheme,
    "list with None": [None],
    "pair without options": ("yarn", None),
    "list in itself": endless(),
    "unspeakable": Unspeakable(),
}
FACTORS = {
    "half": (0.5, "at least 1, got 0.5"),
    "negative": (-2, "got -2"),
    "nan": (NAN, "nan"),
    "inf": (INF, "inf"),
    "-inf": (-INF, "-inf"),
    "True": (True, "True"),
    "text": ("8", "'8'"),
    "list": ([8], r"\[8\]"),
    "complex": (8j, "8j"),
    "tensor": (torch.tensor(8.0), "tensor"),
    "too large": (1e7, "1,000,000"),
    "overflowing": (10**400, "finite number"),
    "largest float": (1e308, "1e[+]308"),
    "unspeakable": (Unspeakable(), "Unspeakable"),
    "zero": (0, "got 0"),
}
NOT_LENGTHS: dict[str, Any] = {
    "share": 64.0,
    "text": "64",
    "True": True,
    "zero": 0,
    "negative": -1,
    "nan": NAN,
    "list": [64],
    "huge": 2**31,
    "overflowing": 10**400,
    "tensor": torch.tensor(64),
    "unspeakable": Unspeakable(),
}
LAYERS = {
    "not there": ({99: "none"}, "'99'.+0 … 1"),
    "negative": ({-1: "none"}, "'-1'"),
    "word": ({"a": "none"}, "'a'"),
    "twice": ({"1": "none", "::1": "rope"}, "layer 1 twice"),
    "step zero": ({"::0": "none"}, "'::0'"),
    "5,000 digits": ({"9" * 5000: "none"}, "999…"),
    "superscript": ({"²": "none"}, "²"),
    "sign": ({"-": "none"}, "'-'"),
    "two signs": ({"--1:": "none"}, "--1"),
    "empty": ({"": "none"}, "''"),
    "newline": ({"\n": "none"}, r"\\n"),
    "four fields": ({"0:1:2:3": "none"}, "0:1:2:3"),
    "share": ({1.5: "none"}, "1.5"),
    "None": ({None: "none"}, "None"),
    "text": ("3", "'3'"),
    "list": ([1], r"\[1\]"),
}
NO_MODELS: dict[str, Any] = {
    "None": None,
    "number": 1,
    "path": "a/path",
    "layer": nn.Linear(2, 2),
    "list": [],
    "mapping": {},
    "class": nn.Linear,
    "two": nn.ModuleList(MistralModel(MistralConfig(**dict.fromkeys(SIZES, 8), num_hidden_layers=1)) for _ in "ab"),
}
WHY = dict.fromkeys(NO_MODELS, "A live model is needed") | {
    "layer": "goes through the AttentionInterface",
    "two": "holds several models that read tokens",
}


def exported(model: Any) -> object:
    return hf_posenc.export_native(model, "nowhere")


def with_config(name: str, value: Any, scheme: str = "yarn") -> Callable[[Scene], object]:
    """Patch a model whose live configuration says something else; then put it right, so that the rest compares."""

    def act(scene: Scene) -> object:
        config = scene.model.config
        before, changed = getattr(config, name), copy.deepcopy(value)
        object.__setattr__(config, name, changed)
        try:
            return hf_posenc.patch_model(scene.model, scheme, trained_length=TRAINED_LENGTH, factor=2)
        finally:
            object.__setattr__(config, name, before)

    return act


def rotations(**parameters: Any) -> dict[str, Any]:
    """``rope_parameters`` with some of them changed."""
    return {"rope_type": "default", "rope_theta": 10_000.0} | parameters


def called(**call: Any) -> Callable[[Scene], object]:
    """Read a text with other keywords."""
    return lambda scene: scene.model(**({"input_ids": random_tokens(scene.model, 6)} | call))


def wrapped(scene: Scene) -> object:
    """A stage of a pipeline: half of the layers."""
    stage = copy.deepcopy(scene.model)
    stage.model.layers = stage.model.layers[:1]
    return hf_posenc.patch_model(stage, "yarn", factor=2)


def foreign(scene: Scene) -> object:
    """Somebody else has put a forward on an instance."""
    model = copy.deepcopy(scene.model)
    attention = model.model.layers[1].self_attn
    attention.forward = partial(attention.forward)
    return hf_posenc.patch_model(model, "yarn", factor=2)


def poisoned(value: float, weight: str = "layers.1.self_attn.q_proj.weight") -> Callable[[Scene], object]:
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


SECOND: Errors = (errors.OptionOutOfRange, errors.CannotCombine)


def rows() -> list[Row]:
    """All of them."""
    found = [Row(1, name, error, message, patching(scheme)) for name, (scheme, error, message) in SCHEMES.items()]
    found += [
        Row(
            2,
            name,
            UNKNOWN,
            r"No scheme is called|A scheme is a name, a list .+ or a Scheme class, got",
            patching(scheme),
        )
        for name, scheme in NOT_SCHEMES.items()
    ]
    numbers = {"half": 3, "negative": 4, "nan": 5, "inf": 6, "True": 7, "text": 8}
    found += [
        Row(numbers.get(name, 6), f"factor {name}", LENGTH, f"factor.+{message}", patching("yarn", factor=value))
        for name, (value, message) in FACTORS.items()
    ]
    found += [
        Row(9, "contradiction", LENGTH, "but target_length is 100", patching("yarn", factor=8, target_length=100)),
        Row(10, "target below trained", LENGTH, "got 8", patching("yarn", target_length=8)),
        Row(12, "option", errors.UnknownOption, "Did you mean 'beta_fast'", patching("yarn", factor=8, beta_fst=1)),
        Row(12, "factor misspelt", errors.UnknownOption, "'fator'", patching("yarn", fator=8)),
        Row(12, "no word", errors.UnknownOption, "''", patching("yarn", **{"": 1})),
        Row(12, "of no part", errors.UnknownOption, "windw", patching("yarn+logn", windw=3)),
        Row(13, "beta_fast below beta_slow", OPTION, "beta_fast must", patching("yarn", beta_fast=1.0, beta_slow=2.0)),
        Row(
            14,
            "too short",
            OPTION,
            "short_factor",
            patching("longrope", factor=2, short_factor=[1.0], long_factor=[1.0]),
        ),
        Row(14, "below one", OPTION, "short_factor.+greater", patching("longrope", factor=2, short_factor=[0.5] * 8)),
        Row(14, "of texts", OPTION, "long_factor", patching("longrope", factor=2, long_factor=["a"] * 8)),
        Row(14, "of nan", OPTION, "long_factor.+finite", patching("longrope", factor=2, long_factor=[NAN] * 8)),
        Row(14, "a million", OPTION, "at most 65536", patching("longrope", factor=2, long_factor=[1.0] * 10**6)),
        Row(15, "window of everything", OPTION, "window", patching("self_extend", factor=2, window=TRAINED_LENGTH)),
        Row(15, "infeasible", OPTION, "group|window", patching("self_extend", factor=8, group=2, window=16)),
        Row(16, "odd", OPTION, "rotary_dim", patching("rope", rotary_dim=7)),
        Row(16, "beyond the head", OPTION, "rotary_dim", patching("rope", rotary_dim=64)),
        Row(17, "two rotations", errors.CannotCombine, "Keep one", patching("rope+yarn")),
        Row(17, "two remaps", errors.CannotCombine, "Keep one", patching("rerope+self_extend")),
        Row(17, "the same twice", errors.CannotCombine, "both bring `rotation`", patching("yarn+yarn", factor=2)),
        Row(18, "BERT", errors.SchemeNotDefined, "decoder", patching("rope+dca", factor=2), model_type="bert"),
        Row(18, "GPT-2", errors.SchemeNotDefined, "rope[+]rerope", patching("rerope"), model_type="gpt2"),
        Row(19, "the same", errors.AlreadyPatched, "'yarn'", patching("yarn", factor=2), patch=("yarn", {"factor": 2})),
        Row(19, "another", errors.AlreadyPatched, "'yarn'", patching("alibi"), patch=("yarn", {"factor": 2})),
        Row(21, "own forward", errors.ForeignPatch, "forward of its own", foreign),
        Row(24, "half of the layers", errors.UnsupportedModel, "1 attention layers.+says 2", wrapped),
        Row(
            28,
            "narrow mask",
            errors.MaskMismatch,
            "3 wide for 6",
            called(attention_mask=torch.ones(1, 3)),
            patch=("alibi", {}),
        ),
        Row(
            28,
            "wide mask",
            errors.MaskMismatch,
            "9 wide for 6",
            called(attention_mask=torch.ones(1, 9)),
            patch=("alibi", {}),
        ),
        Row(
            31,
            "table",
            (OPTION, errors.PositionOutOfTable),
            "32",
            patching("learned", target_length=5000),
            model_type="gpt2",
        ),
        Row(32, "continued", errors.NeedsWholeText, "use_cache=False", continued, patch=("norm01", {})),
        Row(33, "backend", errors.BackendCannotCarry, "flash_attention_2", cast_backend, patch=("alibi", {})),
        Row(34, "backend set later", errors.BackendCannotCarry, "sdpa", cast_backend, patch=("t5", {})),
        Row(56, "NaN weight", errors.WeightsNotFinite, "q_proj", poisoned(NAN)),
        Row(
            56, "infinite weight", errors.WeightsNotFinite, "v_proj", poisoned(INF, "layers.0.self_attn.v_proj.weight")
        ),
        Row(56, "NaN norm", errors.WeightsNotFinite, "norm", poisoned(NAN, "layers.0.input_layernorm.weight")),
    ]
    for option in ("target_length", "trained_length"):
        found += [
            Row(11, f"{option} {name}", LENGTH, option, patching("yarn", **{option: value}))
            for name, value in NOT_LENGTHS.items()
        ]
    found += [
        Row(25, name, OPTION, message, patching("yarn", factor=2, layers=layers))
        for name, (layers, message) in LAYERS.items()
    ]
    found += [Row(25, "unknown scheme", UNKNOWN, "'non'", patching("yarn", layers={0: "non"}))]
    takers: tuple[Callable[..., object], ...] = (
        hf_posenc.unpatch_model,
        hf_posenc.describe,
        hf_posenc.scheme_of,
        lambda model: hf_posenc.patch_model(model, "yarn"),
        exported,
    )
    for number, taker in enumerate(takers):
        found += [
            Row(20, f"{name} {number}", errors.UnsupportedModel, WHY[name], lambda _, t=taker, m=model: t(m))
            for name, model in NO_MODELS.items()
            if not (taker is exported and name == "path")  # which is a name that may be found
        ]
    found += [
        Row(20, "export of a path", errors.ModelNotFound, "no folder here", lambda _: exported("a/path")),
        Row(20, "is_patched of a path", errors.UnsupportedModel, "'a/path'", lambda _: hf_posenc.is_patched("a/path")),
        Row(20, "nothing to undo", errors.NotPatched, "no scheme", lambda s: hf_posenc.unpatch_model(s.model)),
        Row(20, "nothing to describe", errors.NotPatched, "no scheme", lambda s: hf_posenc.describe(s.model)),
        Row(
            20,
            "nothing to export",
            errors.NotPatched,
            "no scheme",
            lambda s: hf_posenc.export_native(s.model, s.folder),
        ),
        Row(
            20,
            "folder that is a file",
            errors.FolderUnusable,
            "is a file",
            lambda s: hf_posenc.export_native(s.model, s.saved["file"]),
            patch=("yarn", {"factor": 2}),
        ),
        Row(
            20,
            "folder in a file",
            errors.FolderUnusable,
            "is a file",
            lambda s: hf_posenc.export_native(s.model, s.saved["file"] / "x"),
            patch=("yarn", {"factor": 2}),
        ),
        Row(
            20,
            "folder None",
            errors.WrongKind,
            "None",
            lambda s: hf_posenc.export_native(s.model, None),
            patch=("yarn", {"factor": 2}),
        ),
        Row(
            20,
            "not expressible",
            errors.NotExpressible,
            "alibi",
            lambda s: hf_posenc.export_native(s.model, s.folder),
            patch=("alibi", {}),
        ),
    ]
    for value in (None, 1, "lama", "", b"llama", "../llama", ["llama"], "LLAMA\x00"):
        found.append(
            Row(
                42,
                f"starter {value!r}",
                errors.UnknownStarter,
                "llama, gpt2, bert",
                lambda _, v=value: hf_posenc.load_starter(v),
            )
        )
    for value in ("", "a b", "A", "x:y", "../x", None, 7, "x" * 100, "a\nb", "é", "+", "yarn"):
        found.append(
            Row(1, f"register {str(value)[:9]!r}", errors.NameNotAllowed, "name", lambda _, v=value: registered(v))
        )
    found += calls()
    found += configurations()
    return found


def registered(name: Any) -> object:
    """A third party's scheme under a bad name."""

    class Odd(hf_posenc.Scheme):
        """A thing."""

    return hf_posenc.register_scheme(name)(Odd)


def calls() -> list[Row]:
    """Rows 26 to 30: what a patched model may be called with."""
    ids, mask = torch.zeros(1, 6, dtype=torch.long), torch.ones(1, 6, dtype=torch.long)
    bad: list[tuple[int, str, str, dict[str, Any]]] = [
        (26, "no tokens", "no tokens", {"input_ids": ids[:, :0]}),
        (27, "token past the vocabulary", f"{VOCABULARY}", {"input_ids": ids + VOCABULARY}),
        (27, "token below 0", "-1", {"input_ids": ids - 1}),
        (29, "row of padding", "row 0", {"attention_mask": mask * 0}),
        (30, "too few positions", r"shape \(1, 5\).+6 tokens", {"position_ids": torch.arange(5)[None]}),
        (30, "positions of no row", r"shape \(6,\).+\[batch or 1, tokens\]", {"position_ids": torch.arange(6)}),
        (30, "truth values", "truth values.+attention_mask", {"position_ids": mask.bool()}),
        (30, "negative positions", "-3", {"position_ids": torch.arange(6)[None] - 3}),
        (30, "fractional positions", "float", {"position_ids": torch.arange(6)[None] + 0.5}),
    ]
    return [
        Row(number, name, errors.InvalidInput, message, called(**call), patch=("yarn", {"factor": 2}))
        for number, name, message, call in bad
    ]


def configurations() -> list[Row]:
    """Rows 46 to 49 on a live model."""
    wrong = errors.HostConfigInvalid
    bad: list[tuple[int, str, str, str, Any]] = [
        (46, "a list", "rope_parameters", "rope_parameters", ["default"]),
        (46, "a text", "rope_parameters", "rope_parameters", "default"),
        (46, "original of 0", "original_max", "rope_parameters", rotations(original_max_position_embeddings=0)),
        (46, "original of True", "original_max", "rope_parameters", rotations(original_max_position_embeddings=True)),
        (46, "factor of nan", "factor", "rope_parameters", rotations(rope_type="linear", factor=NAN)),
        (46, "factor of text", "factor", "rope_parameters", rotations(rope_type="linear", factor="8")),
        (47, "base 0", "rope_theta.+greater than 0, got 0", "rope_parameters", rotations(rope_theta=0)),
        (47, "base -1", "rope_theta.+got -1", "rope_parameters", rotations(rope_theta=-1.0)),
        (47, "base inf", "rope_theta.+got inf", "rope_parameters", rotations(rope_theta=INF)),
        (48, "length -1", "max_position_embeddings.+got -1", "max_position_embeddings", -1),
        (48, "length 64.0", "max_position_embeddings.+got 64.0", "max_position_embeddings", 64.0),
        (48, "length text", "max_position_embeddings.+'64'", "max_position_embeddings", "64"),
        (49, "kind", "rope_type.+'yarm'.+Did you mean 'yarn'", "rope_parameters", rotations(rope_type="yarm")),
        (49, "kind path", "rope_type.+etc/passwd", "rope_parameters", rotations(rope_type="../../etc/passwd")),
        (49, "kind list", "rope_type", "rope_parameters", rotations(rope_type=["yarn"])),
    ]
    return [Row(n, f"live {name}", wrong, message, with_config(field, value)) for n, name, message, field, value in bad]
