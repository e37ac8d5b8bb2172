"""Rows 42 and 45 to 53: what may be wrong with a name, a ``config.json`` and the block in it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hf_posenc
from hf_posenc import errors

from .row import Errors, Row, Scene

DAMAGED: Errors = errors.CheckpointMismatch
HUGE = 17 << 20
BYTES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda data: data[: len(data) // 2], "not a valid JSON|cannot be read"),
    "empty": (lambda data: b"", "no JSON object"),
    "UTF-16": (lambda data: data.decode().encode("utf-16"), "no JSON object"),
    "BOM": (lambda data: b"\xef\xbb\xbf" + data, "no JSON object"),
    "Latin-1": (lambda data: data.replace(b'"llama"', b'"ll\xe4ma"', 1)[:-2] + b', "x": "\xe4"}', "can't decode byte"),
    "key twice": (
        lambda data: data.rstrip()[:-1] + b', "vocab_size": 96, "position_scheme": null}',
        "'position_scheme' twice",
    ),
    "17 MB": (lambda data: data.rstrip()[:-1] + b', "x": "' + b"x" * HUGE + b'"}', "larger than 16777216"),
    "10,000 deep": (
        lambda data: data.rstrip()[:-1] + b', "x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        "nested more than 20 deep",
    ),
    "a list": (lambda data: b"[" + data + b"]", "no JSON object"),
    "a number": (lambda data: b"7", "no JSON object"),
    "NUL": (lambda data: b"\0" * 100, "no JSON object"),
}
NAMES: dict[str, Any] = {
    "empty": "",
    "blank": "  ",
    "newline": "\n",
    "dash": "-",
    "three parts": "a/b/c",
    "address": "https://a.b/c",
    "NUL": "a\x00b",
    "5,000 letters": "x" * 5000,
    "no such folder": "./absent",
    "back": "a\\b",
    "dots": "../../absent",
    "not on this machine": "nobody/nothing",
}


def loaded(change: Callable[[Path], object], source: str = "llama", **how: Any) -> Callable[[Scene], object]:
    """Load a damaged copy of a saved folder."""

    def act(scene: Scene) -> object:
        copy = scene.desk / "copy"
        shutil.copytree(scene.saved[source], copy)
        change(copy)
        return hf_posenc.from_pretrained(copy, local_files_only=True, **how)

    return act


def bytes_changed(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """A change of the bytes of ``config.json``."""
    return lambda folder: (folder / "config.json").write_bytes(change((folder / "config.json").read_bytes()))


def entries(**changes: Any) -> Callable[[Path], object]:
    """A change of entries of ``config.json``."""

    def change(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(content | changes), encoding="utf-8")

    return change


def in_block(**changes: Any) -> Callable[[Path], object]:
    """A change of entries of the block."""

    def change(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        entries(position_scheme=content["position_scheme"] | changes)(folder)

    return change


def part(name: Any = "yarn", **options: Any) -> list[dict[str, Any]]:
    """A scheme as a block has it."""
    return [{"name": name, "options": options}]


def deep(levels: int) -> Any:
    """A list in a list in a list."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


BLOCKS: list[tuple[int, str, str, dict[str, Any]]] = [
    (50, "newer format", "format 99.+Update", {"format": 99}),
    (50, "format of text", "format is '1'", {"format": "1"}),
    (50, "format True", "format is True", {"format": True}),
    (50, "a format of 5,000 digits", "format", {"format": 10**4000}),
    (51, "plugin", "not registered here.+'somebodys'.+Install", {"scheme": part("somebodys")}),
    (51, "module", "not registered here.+os:system", {"scheme": part("os:system")}),
    (51, "path", "not registered here", {"scheme": part("../../yarn")}),
    (51, "number", "not registered here", {"scheme": part(7)}),
    (51, "list", "not registered here", {"scheme": part([])}),
    (50, "unknown key", "unknown key 'fromat'.+'format'", {"fromat": 1}),
    (50, "no parts", "1 to 16 parts", {"scheme": []}),
    (50, "17 parts", "1 to 16 parts", {"scheme": part("logn") * 17}),
    (50, "scheme of text", "1 to 16 parts", {"scheme": "yarn"}),
    (50, "options of a list", "name and options", {"scheme": [{"name": "yarn", "options": []}]}),
    (50, "more in a part", "name and options", {"scheme": [{"name": "yarn", "options": {}, "module": "os"}]}),
    (50, "layers of text", "layers is no object", {"layers": "0"}),
    (50, "layers of numbers", "1 to 16 parts", {"layers": {"0": 7}}),
    (50, "30 deep", "nested more than 20 deep", {"scheme": part(beta_fast=deep(30))}),
    (50, "2 MB", "1048576 values", {"scheme": part(beta_fast="x" * (2 << 20))}),
    (53, "NaN", "beta_fast.+nan", {"scheme": part(beta_fast=float("nan"))}),
    (53, "Infinity", "beta_fast.+inf", {"scheme": part(beta_fast=float("inf"))}),
    (53, "NaN length", "trained_length", {"trained_length": float("nan")}),
    (53, "negative", "beta_fast", {"scheme": part(beta_fast=-1.0)}),
    (53, "True", "beta_fast", {"scheme": part(beta_fast=True)}),
    (53, "unknown option", "beta_fst", {"scheme": part(beta_fst=1.0)}),
    (53, "length of text", "target_length", {"target_length": "64"}),
    (53, "length 0", "host_length", {"host_length": 0}),
    (53, "length 2^40", "target_length", {"target_length": 2**40}),
    (53, "target below trained", "shorter", {"target_length": 8}),
]
CONFIGS: list[tuple[int, str, str, dict[str, Any]]] = [
    (
        49,
        "linear, no factor",
        "of type linear, has no factor",
        {"rope_parameters": {"rope_type": "linear", "factor": None, "rope_theta": 1e4}},
    ),
    (
        49,
        "dynamic, no factor",
        "of type dynamic, has no factor",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}},
    ),
    (
        49,
        "yarn, no factor",
        "of type yarn, has no factor",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
    ),
    (49, "no theta", "has no rope_theta", {"rope_parameters": {"rope_type": "default", "rope_theta": None}}),
    (
        49,
        "no long_factor",
        "has no long_factor",
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8}},
    ),
    (
        49,
        "factors of text",
        "short_factor .+ list of finite",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": ["a"] * 8,
                "long_factor": [1.0] * 8,
            }
        },
    ),
    (
        49,
        "too few factors",
        "long_factor .+ 3 numbers.+ 8 rotated pairs",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0] * 8,
                "long_factor": [1.0] * 3,
            }
        },
    ),
    (46, "list", "rope_parameters", {"rope_parameters": ["default"]}),
    (46, "text", "rope_parameters", {"rope_parameters": "default"}),
    (46, "original 0", "original_max", {"rope_parameters": {"original_max_position_embeddings": 0, "rope_theta": 1e4}}),
    (47, "base 0", "rope_theta.+got 0", {"rope_parameters": {"rope_type": "default", "rope_theta": 0}}),
    (47, "base -1", "rope_theta.+got -1", {"rope_parameters": {"rope_type": "default", "rope_theta": -1}}),
    (47, "old base", "rope_theta.+got nan", {"rope_theta": float("nan")}),
    (48, "length -1", "max_position_embeddings.+got -1", {"max_position_embeddings": -1}),
    (48, "length 64.0", "max_position_embeddings.+got 64.0", {"max_position_embeddings": 64.0}),
    (49, "kind", "rope_type.+'yarm'", {"rope_parameters": {"rope_type": "yarm", "rope_theta": 1e4}}),
    (49, "kind path", "rope_type", {"rope_scaling": {"type": "../../etc/passwd", "factor": 2.0}}),
    (49, "scaling text", "rope_scaling", {"rope_scaling": "linear"}),
]


def rows() -> list[Row]:
    """All of them."""
    found = [
        Row(45, name, DAMAGED, message, loaded(bytes_changed(change))) for name, (change, message) in BYTES.items()
    ]
    found += [
        Row(
            42,
            name,
            errors.ModelNotFound,
            "folder|not available",
            lambda _, v=value: hf_posenc.from_pretrained(v, local_files_only=True),
        )
        for name, value in NAMES.items()
    ]
    found += [
        Row(42, f"kind {value!r}", errors.WrongKind, "hub name", lambda _, v=value: hf_posenc.from_pretrained(v))
        for value in (None, 1, b"x", ["x"], {})
    ]
    found += [
        Row(42, "a file", errors.ModelNotFound, "file", lambda s: hf_posenc.from_pretrained(s.saved["file"])),
        Row(
            42,
            "an empty folder",
            DAMAGED,
            "no configuration with a model_type",
            lambda s: hf_posenc.from_pretrained(s.desk),
        ),
        Row(42, "class of torch", DAMAGED, "none of them is a class", loaded(lambda _: 0, model_class=int)),
        Row(
            42,
            "unknown architecture",
            DAMAGED,
            r"\['os'\].+model_class=",
            loaded(entries(architectures=["os"]), "plain"),
        ),
        Row(42, "architecture of a number", DAMAGED, r"architectures \[\]", loaded(entries(architectures=7), "plain")),
        Row(
            42,
            "unknown kind",
            DAMAGED,
            r"architectures \[\]",
            loaded(entries(model_type="../x", architectures=None), "plain"),
        ),
        Row(
            42,
            "10 million layers",
            DAMAGED,
            "of 2 layers.+says 10,000,000",
            loaded(entries(num_hidden_layers=10**7), "plain"),
        ),
        Row(
            42,
            "one layer of two",
            DAMAGED,
            r"of 2 layers.+says 1\..+config=",
            loaded(entries(num_hidden_layers=1), "plain"),
        ),
        Row(42, "no layer", DAMAGED, r"of 2 layers.+says 0\.", loaded(entries(num_hidden_layers=0), "plain")),
        Row(
            42,
            "heads that do not divide",
            DAMAGED,
            "hidden size.+multiple",
            loaded(entries(num_attention_heads=3), "plain"),
        ),
        Row(42, "words", DAMAGED, "another shape", loaded(entries(vocab_size=10**9), "plain")),
        Row(12, "keyword", errors.UnknownOption, "'fator'.+'factor'", loaded(lambda _: 0, "plain", fator=8)),
        Row(
            12,
            "keyword of a scheme",
            errors.UnknownOption,
            "beta_fst.+beta_fast",
            loaded(lambda _: 0, "plain", scheme="yarn", beta_fst=8),
        ),
        Row(42, "dtype", DAMAGED, "dtype", loaded(lambda _: 0, "plain", dtype="float33")),
        Row(52, "factor asked for", DAMAGED, "factor 4 was asked for", loaded(lambda _: 0, factor=4)),
        Row(52, "scheme asked for", DAMAGED, "'pi' was asked for", loaded(lambda _: 0, scheme="pi")),
        Row(52, "rotation that moves under a remap", DAMAGED, "dynamic", loaded(remap_on_dynamic)),
        Row(
            52,
            "base changed behind the block",
            DAMAGED,
            r"rope_theta 10000\.0.+now says 500000\.0.+Put that back",
            loaded(entries(rope_parameters={"rope_type": "default", "rope_theta": 500_000.0})),
        ),
        Row(
            52,
            "scaling added to a scheme",
            DAMAGED,
            "rope_type 'default'.+'linear'.+patch the plain model",
            loaded(entries(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0})),
        ),
        Row(52, "rotation gone", DAMAGED, "rope_theta|rope_type", loaded(entries(rope_parameters=None))),
        Row(
            52,
            "record of text",
            DAMAGED,
            "rotation of .+ is no object but 'default'",
            loaded(entries(position_scheme_rotation="default")),
        ),
        Row(
            52,
            "another record",
            DAMAGED,
            r"rope_theta 7\.0",
            loaded(entries(position_scheme_rotation={"rope_theta": 7.0})),
        ),
        Row(52, "length without a scheme", errors.NotPatched, "scheme=", loaded(lambda _: 0, "plain", factor=4)),
        Row(52, "guard", DAMAGED, "position_scheme_guard", loaded(entries(position_scheme_guard="x"))),
        Row(
            52, "guard of objects", DAMAGED, "position_scheme_guard", loaded(entries(position_scheme_guard=[{"a": 1}]))
        ),
        Row(
            52,
            "guard that names a class",
            DAMAGED,
            "guard .+ cannot be read: it is .+auto_map",
            loaded(entries(position_scheme_guard=[["auto_map", {"a": "b"}]])),
        ),
        Row(52, "guard gone", DAMAGED, "need the package", loaded(entries(position_scheme_guard=None))),
        Row(50, "block of text", DAMAGED, "no object", loaded(entries(position_scheme="yarn"))),
        Row(50, "block of a list", DAMAGED, "no object", loaded(entries(position_scheme=[1]))),
        Row(50, "no fields", DAMAGED, "no 'format'|format", loaded(entries(position_scheme={}))),
    ]
    found += [
        Row(number, name, DAMAGED, message, loaded(in_block(**change))) for number, name, message, change in BLOCKS
    ]
    wrong = errors.HostConfigInvalid
    found += [
        Row(n, f"file {name}", wrong, message, loaded(entries(**change), "plain"))
        for n, name, message, change in CONFIGS
    ]
    return found


def remap_on_dynamic(folder: Path) -> None:
    """The scheme was stored for one rotation, and the configuration now has one that changes with the length."""
    in_block(scheme=part("self_extend", group=4, window=8))(folder)
    entries(position_scheme_rotation=None)(folder)
    entries(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})(folder)
