"""Rows of bad input: names, a ``config.json`` and the scheme entry in it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hf_posenc
from hf_posenc import errors

from .row import NAN, Act, Change, Errors, Row, Scene, bytes_of, entries, unchanged

DAMAGED: Errors = errors.CheckpointMismatch
BYTES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda data: data[: len(data) // 2], "JSON|read"),
    "empty": (lambda data: b"", "JSON"),
    "key twice": (lambda data: data.rstrip()[:-1] + b', "position_scheme": null}', "'position_scheme' twice"),
    "17 MB": (lambda data: data.rstrip()[:-1] + b', "x": "' + b"x" * (17 << 20) + b'"}', "16777216"),
    "10,000 deep": (lambda data: data.rstrip()[:-1] + b', "x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "20 deep"),
    "a list": (lambda data: b"[" + data + b"]", "JSON"),
}
NAMES = ("", "\n", "a/b/c", "https://a.b/c", "a\x00b", "x" * 5000, "./absent", "nobody/nothing")


def loaded(change: Change, source: str = "llama", **how: Any) -> Act:
    """Load a damaged copy of a saved folder."""

    def act(scene: Scene) -> object:
        copy = scene.desk / "copy"
        shutil.copytree(scene.saved[source], copy)
        change(copy)
        return hf_posenc.from_pretrained(copy, local_files_only=True, **how)

    return act


def in_block(**changes: Any) -> Change:
    """A change of entries of the block."""

    def change(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        entries(position_scheme=content["position_scheme"] | changes)(folder)

    return change


def part(name: Any = "yarn", **options: Any) -> list[dict[str, Any]]:
    """A scheme as a block has it."""
    return [{"name": name, "options": options}]


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    """An entry ``rope_parameters``."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4} | parameters}


BLOCKS: list[tuple[str, dict[str, Any]]] = [
    ("format 99", {"format": 99}),
    ("'somebodys'", {"scheme": part("somebodys")}),
    ("os:system", {"scheme": part("os:system")}),
    ("unknown key 'fromat'", {"fromat": 1}),
    ("1 to 16 parts", {"scheme": part("logn") * 17}),
    ("name and options", {"scheme": [{"name": "yarn", "options": {}, "module": "os"}]}),
    ("beta_fast.+nan", {"scheme": part(beta_fast=NAN)}),
    ("beta_fst", {"scheme": part(beta_fst=1.0)}),
    ("trained_length", {"trained_length": NAN}),
    ("target_length", {"target_length": 2**40}),
    ("shorter", {"target_length": 8}),
]
CONFIGS: list[tuple[str, dict[str, Any]]] = [
    ("long_factor", rope("longrope", short_factor=[1.0] * 8, long_factor=[1.0] * 3)),
    ("rope_parameters", {"rope_parameters": ["default"]}),
    ("rope_theta.+nan", {"rope_theta": NAN}),
    ("max_position_embeddings", {"max_position_embeddings": 64.0}),
    ("'yarm'", rope("yarm")),
    ("rope_type", {"rope_scaling": {"type": "../../etc/passwd", "factor": 2.0}}),
]
SIZES: list[tuple[str, dict[str, Any]]] = [
    ("model_class=", {"architectures": ["os"]}),
    ("architectures", {"model_type": "../x", "architectures": None}),
    ("10,000,000", {"num_hidden_layers": 10**7}),
    ("of 2 layers", {"num_hidden_layers": 1}),
    ("multiple", {"num_attention_heads": 3}),
]
OF_SCHEME: list[tuple[str, dict[str, Any]]] = [
    ("500000", rope("default", rope_theta=500_000.0)),
    ("'linear'", rope("linear", factor=2.0)),
    ("'default'", {"position_scheme_rotation": "default"}),
    ("rope_theta 7", {"position_scheme_rotation": {"rope_theta": 7.0}}),
    ("auto_map", {"position_scheme_guard": [["auto_map", {"a": "b"}]]}),
    ("need the package", {"position_scheme_guard": None}),
    ("Save the patched model again", {"position_scheme_guard": [["num_hidden_layers", True]]}),
    ("format", {"position_scheme": {}}),
]


def remap_on_dynamic(folder: Path) -> None:
    """The scheme was stored for one rotation, and the configuration now has one that changes with the length."""
    in_block(scheme=part("self_extend", group=4, window=8))(folder)
    entries(position_scheme_rotation=None)(folder)
    entries(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})(folder)


def rows() -> list[Row]:
    """All of them."""
    load, unknown = hf_posenc.from_pretrained, errors.UnknownOption
    plain = lambda **how: loaded(unchanged, "plain", **how)  # noqa: E731
    return [
        *(
            Row(f"bytes {name}", DAMAGED, key, loaded(bytes_of("config.json", change)))
            for name, (change, key) in BYTES.items()
        ),
        *(
            Row(f"name {name[:20]!r}", errors.ModelNotFound, "folder|not available",
                lambda _, n=name: load(n, local_files_only=True))
            for name in NAMES
        ),
        *(Row(f"block {key} {change}"[:60], DAMAGED, key, loaded(in_block(**change))) for key, change in BLOCKS),
        *(
            Row(f"file {key} {change}"[:90], errors.HostConfigInvalid, key, loaded(entries(**change), "plain"))
            for key, change in CONFIGS
        ),
        *(Row(f"sizes {change}", DAMAGED, key, loaded(entries(**change), "plain")) for key, change in SIZES),
        *(Row(f"scheme {change}", DAMAGED, key, loaded(entries(**change))) for key, change in OF_SCHEME),
        Row("name None", errors.WrongKind, "hub name", lambda _: load(None)),
        Row("a file", errors.ModelNotFound, "file", lambda s: load(s.saved["file"])),
        Row("an empty folder", DAMAGED, "model_type", lambda s: load(s.desk)),
        Row("keyword of a scheme", unknown, "Did you mean 'beta_fast'", plain(scheme="yarn", beta_fst=8)),
        Row("dtype", DAMAGED, "dtype", plain(dtype="float33")),
        Row("factor asked for", DAMAGED, "factor 4", loaded(unchanged, factor=4)),
        Row("scheme asked for", DAMAGED, "'pi'", loaded(unchanged, scheme="pi")),
        Row("option asked for", DAMAGED, "beta_fast", loaded(unchanged, scheme="yarn", beta_fast=8.0)),
        Row("layers asked for", DAMAGED, "pi", loaded(unchanged, scheme="yarn", layers={0: "pi"})),
        Row("trained length asked for", DAMAGED, "trained", loaded(unchanged, trained_length=7)),
        Row("length without a scheme", errors.NotPatched, "scheme", plain(factor=4)),
        Row("rotation that moves under a remap", DAMAGED, "dynamic", loaded(remap_on_dynamic)),
    ]  # fmt: skip
