"""Write docs/families.md, which is not committed, from docs/families.json: the families that can be patched.

    python docs/make_families.py

The command measures docs/families.json again, in some minutes; building the site writes the page from it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers

from hf_posenc.core.files.atomic import write_json
from hf_posenc.patches.registry import adapter_names

DATA, PAGE = (Path(__file__).parent / f"families.{kind}" for kind in ("json", "md"))
KINDS = {"causal": "Decoders", "masked": "Encoders", "seq2seq": "Encoder–decoders"}
HEAD = """# Families of models

This table says which families of transformers {version} can be patched. `python docs/make_families.py` builds each from
the default configuration of its class, and observes it on a few tokens. A family is accepted if two things hold
([how](add-model.md)). With its positions off, nothing tells it the order of its tokens. With its measured rotation put
back, its outputs are its own. `hf-posenc list --models --model M` does the same with your checkpoint. Families with an
adapter of their own: {own}.

Of {causal} decoder families {exact} can be patched as a whole. {partly} can be patched in their attention layers:
state-space, linear or convolution layers carry order as well. Of {masked} encoder families {encoders} can be patched;
of {seq2seq} encoder–decoder families {both}, in both stacks (audio encoders are left alone). A family inside a
multimodal model (Gemma 3, Llama 4 …) is found there. *Not built*: the default configuration of a class makes no model
that runs. A checkpoint of the family may well be patched. Options of a configuration change what layers compute: a
`gemma4_text` with `num_kv_shared_layers` above 0 is refused, as `gemma3n_text` is by default. `schemes` is the number
of schemes that are defined on it without another one; *as schemes* names its own positions, with the scheme of each
kind of layer (`host`: scaled already).
"""


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.connect("builder-inited", lambda app: PAGE.write_text(page(stored()), encoding="utf-8"))
    return {"version": "1", "parallel_read_safe": True}


def stored() -> dict[str, Any]:
    """The committed survey."""
    return json.loads(DATA.read_text(encoding="utf-8"))


def page(survey: dict[str, Any]) -> str:
    """The page in Markdown."""
    families = survey["families"]
    by_kind = {kind: [one for one in families if one["kind"] == kind] for kind in KINDS}
    patched = {
        kind: [one["verdict"] for one in found if one["verdict"] in ("exact", "attention layers")]
        for kind, found in by_kind.items()
    }
    text = HEAD.format(
        version=survey["transformers"],
        causal=len(by_kind["causal"]),
        masked=len(by_kind["masked"]),
        exact=patched["causal"].count("exact"),
        partly=patched["causal"].count("attention layers"),
        encoders=len(patched["masked"]),
        seq2seq=len(by_kind["seq2seq"]),
        both=len(patched["seq2seq"]),
        own=", ".join(adapter_names()),
    )
    for kind, title in KINDS.items():
        text += f"\n## {title} that can be patched\n\n"
        text += "| family | schemes | own positions | as schemes |\n|---|---|---|---|\n"
        for one in by_kind[kind]:
            if one["verdict"] in ("exact", "attention layers"):
                part = " (attention layers)" if one["verdict"] == "attention layers" else ""
                text += f"| {one['model_type']}{part} | {one['schemes']} | {one['detail']} | {one['native']} |\n"
        text += f"\n## {title} that cannot, or were not built\n\n| family | | why |\n|---|---|---|\n"
        for one in by_kind[kind]:
            if one["verdict"] in ("refused", "not built"):
                text += f"| {one['model_type']} | {one['verdict']} | {one['detail'].replace('|', '/')} |\n"
    return text


def main() -> None:
    """Measure the installed transformers, and write the data."""
    from families_survey import survey

    write_json(DATA, {"transformers": transformers.__version__, "families": list(survey())})


if __name__ == "__main__":
    main()
