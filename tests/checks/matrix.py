"""Which pairs the contract is asserted for. Everything registered appears here by itself."""

from __future__ import annotations

from hf_posenc import checks
from hf_posenc.checks import Pair
from hf_posenc.patching.state import scheme_of
from hf_posenc.schemes.base import has

HOOKS = (
    *("embed", "read_table", "reposition", "rotation", "row_rotation", "regions", "prepare", "carry"),
    *("bias", "values", "query_scale", "row_scale", "logit_scale", "sink", "visible", "kept_keys"),
)

PAIRS = checks.pairs()
COMPOSED = [
    Pair("llama", "yarn+logn", factor=4),
    Pair("llama", "rerope+logn", factor=4),
    Pair("llama", "pi+self_extend", factor=4),
    Pair("llama", "rope+alibi", factor=4),
    Pair("llama", "dynamic_ntk+logn", factor=4),
    Pair("llama", "alibi+window", factor=4),
    Pair("llama", "rope", factor=4, layers={"1": "none"}),
    Pair("gpt2", "rope+rerope", factor=4),
    Pair("gpt2", "yarn", factor=4, layers={"::2": "alibi"}),
    Pair("gpt2", "sinusoidal+t5", factor=4),
    Pair("bert", "rope+t5", factor=4),
    Pair("bert_decoder", "rope+self_extend", factor=4),
    Pair("llama", "yarn+dca", factor=4),
    Pair("llama", "llama3+string", factor=4),
    Pair("llama", "yarn+sinks+logn", factor=4, sinks=3, recent=13),
    Pair("llama", "alibi+sinks", factor=4, sinks=3, recent=13),
    Pair("llama", "sinks", factor=4, learned_logit=True),
    Pair("llama", "longrope+logn", factor=4),
    Pair("llama", "rope+fox", factor=4),
    Pair("llama", "rope+ssmax", factor=4),
    Pair("llama", "alibi+ssmax", factor=4),
    Pair("llama", "shaw", factor=4, values=True, key_query=True),
    Pair("llama", "irope", factor=4, interval=2, window=9),
    Pair("llama", "norm01", factor=4, n=128),
    Pair("gpt2", "learned_hier+logn", factor=4),
    Pair("gpt2", "fire+window", factor=4, size=20),
    Pair("gpt2", "none+logn", factor=4),
    Pair("bert", "rope+rerope", factor=4),
    Pair("bert", "alibi", factor=4, bidirectional="asymmetric"),
    Pair("bert", "transformer_xl+learned_interp", factor=4),
]
EVERY = [*PAIRS, *COMPOSED]
DECODERS = [pair for pair in EVERY if pair.causal]
CONTINUED = [pair for pair in DECODERS if not pair.needs_whole_text]
COMPANIONS = [pair for pair in EVERY if not pair.randomises]


def hooks_of(pair: Pair) -> tuple[str, ...]:
    """The hooks a pair's scheme has: what decides its route through adapter and engine."""
    with pair.patched() as model:
        scheme = scheme_of(model)
        kept = ("table kept",) if scheme.keeps_table else ()
        return (pair.model_name, *kept, *(hook for hook in HOOKS if has(scheme, hook)))


def one_of_each(pairs: list[Pair]) -> list[Pair]:
    """The first pair of every combination of hooks and model."""
    first: dict[tuple[str, ...], Pair] = {}
    for pair in pairs:
        first.setdefault(hooks_of(pair), pair)
    return list(first.values())


BY_HOOK = one_of_each(PAIRS)
CONTINUED_BY_HOOK = [pair for pair in BY_HOOK if pair in CONTINUED]
