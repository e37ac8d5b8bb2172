"""Write docs/readers.md, which is not committed: what each engine computes from an exported checkpoint.

Run `python docs/make_readers.py`; building the site runs it too.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from hf_posenc import patch_model, read_elsewhere
from hf_posenc.checkpoints.readers.compare import READERS, Reading
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model

PAGE = Path(__file__).parent / "readers.md"
FACTOR = 4
LISTS = {"long_factor": [1.0 + 0.3 * pair for pair in range(8)]}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("rope", {"base": 500.0}), ("abf", {}), ("pi", {}), ("ntk", {}), ("llama3", {}), ("yarn", {}),
    ("yarn", {"attention_factor": 1.3}), ("yarn", {"truncate": False}), ("yarn", {"ramp": "rotations"}),
    ("ntk_parts", {}), ("ntk_parts_v1", {}), ("mrrope", {}), ("yarn+resonance", {}), ("dynamic_ntk", {}),
    ("longrope", LISTS), ("proportional", {"p": 0.5}), ("none", {}),
]  # fmt: skip
HEAD = """# Who reads what

An exported checkpoint is read by engines that have formulas of their own. This table applies the formula of each to the
written configuration, and compares it with what transformers computes. No engine is run for it. *Exact*: equal but for
the rounding of float32. *Logits ×*: the rotated part of every logit is scaled by that factor. *Angles*: the largest
difference between two angles of rotation at {target} tokens. The model is a tiny Llama, trained length {trained},
factor {factor}; `dynamic_ntk` and `longrope` are compared up to the trained length. `hf-posenc export` prints the same
lines for your model.

"""
TAIL = """
- **Temperature.** transformers and vLLM read `attention_factor`. An export also states `attn_factor` (SGLang, older
  vLLM), `mscale` (mlx-lm), `short_mscale` and `long_mscale` (vLLM, for `longrope`) where they change something.
  transformers then warns of the unrecognized key `attn_factor`; the warning has no consequence.
- **llama.cpp.** Its converter drops a temperature of your own, and every list of frequencies. A GGUF file that this
  package writes has both ([](serve.md)).
- **mlx-lm** scales no rotation of most mixtures of experts, nor of Phi-3, GPT-NeoX, StableLM, GLM, Cohere, Gemma 1 and
  2, OLMo 1, StarCoder 2 and Nemotron. It reads their `rope_theta` alone.
- **Types of layers.** Only vLLM scales layers with a window. SGLang and llama.cpp leave those of Gemma 3 unscaled, and
  all of ModernBERT. mlx-lm reads only rotations that the older form can state, and has no
  ModernBERT.
- **vLLM** takes one list of `longrope` for all texts. Start it with `--max-model-len`.
"""


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.connect("builder-inited", lambda app: PAGE.write_text(page(), encoding="utf-8"))
    return {"version": "1", "parallel_read_safe": True}


def page() -> str:
    """The page in Markdown."""
    logging.getLogger("transformers.modeling_rope_utils").setLevel(logging.ERROR)  # it warns of other engines' keys
    rows = [f"| scheme | {' | '.join(READERS)} |", "|---|" + "---|" * len(READERS)]
    for scheme, options in CASES:
        readings = read_elsewhere(patch_model(tiny_model("llama"), scheme, factor=FACTOR, **options))
        rows.append(f"| {name_of(scheme, options)} | {' | '.join(map(cell, readings))} |")
    head = HEAD.format(target=FACTOR * TRAINED_LENGTH, trained=TRAINED_LENGTH, factor=FACTOR)
    return head + "\n".join(rows) + "\n" + TAIL


def name_of(scheme: str, options: dict[str, Any]) -> str:
    """A scheme and its options as a reader would write them."""
    stated = ", ".join(f"{name}={'[…]' if isinstance(value, list) else value}" for name, value in options.items())
    return f"`{scheme}`" + (f" `{stated}`" if stated else "")


def cell(reading: Reading) -> str:
    """Cell of one engine: how its result differs."""
    if reading.verdict != "different":
        return f"{reading.verdict}{reading.explanation()}"
    return reading.explanation().removeprefix(": ").replace("logits times", "logits ×")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
