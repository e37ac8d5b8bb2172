"""Which pairs the contract is asserted for. Everything registered appears here by itself."""

from __future__ import annotations

from hf_posenc import checks
from hf_posenc.checks import Case
from hf_posenc.patching.state import scheme_of
from hf_posenc.schemes.base import implements

HOOKS = (
    *("embed", "read_table", "reposition", "rotation", "row_rotation", "regions", "prepare", "extra_key_channels"),
    *("bias", "values", "query_scale", "row_scale", "logit_scale", "sink", "visible", "kept_keys"),
)

PAIRS = checks.cases()
COMPOSED = [
    Case("llama", "yarn+logn", factor=4),
    Case("llama", "rerope+logn", factor=4),
    Case("llama", "pi+self_extend", factor=4),
    Case("llama", "rope+alibi", factor=4),
    Case("llama", "dynamic_ntk+logn", factor=4),
    Case("llama", "alibi+window", factor=4),
    Case("llama", "rope", factor=4, layers={"1": "none"}),
    Case("gpt2", "rope+rerope", factor=4),
    Case("gpt2", "yarn", factor=4, layers={"::2": "alibi"}),
    Case("gpt2", "sinusoidal+t5", factor=4),
    Case("bert", "rope+t5", factor=4),
    Case("bert_decoder", "rope+self_extend", factor=4),
    Case("llama", "yarn+dca", factor=4),
    Case("llama", "llama3+string", factor=4),
    Case("llama", "yarn+sinks+logn", factor=4, sinks=3, recent=13),
    Case("llama", "alibi+sinks", factor=4, sinks=3, recent=13),
    Case("llama", "sinks", factor=4, learned_logit=True),
    Case("llama", "longrope+logn", factor=4),
    Case("llama", "rope+fox", factor=4),
    Case("llama", "rope+ssmax", factor=4),
    Case("llama", "alibi+ssmax", factor=4),
    Case("llama", "shaw", factor=4, values=True, key_query=True),
    Case("llama", "irope", factor=4, interval=2, window=9),
    Case("llama", "norm01", factor=4, n=128),
    Case("gpt2", "learned_hier+logn", factor=4),
    Case("gpt2", "fire+window", factor=4, size=20),
    Case("gpt2", "none+logn", factor=4),
    Case("bert", "rope+rerope", factor=4),
    Case("bert", "alibi", factor=4, bidirectional="asymmetric"),
    Case("bert", "transformer_xl+learned_interp", factor=4),
]
EVERY = [*PAIRS, *COMPOSED]
DECODERS = [pair for pair in EVERY if pair.causal]
CONTINUED = [pair for pair in DECODERS if not pair.needs_whole_text]
COMPANIONS = [pair for pair in EVERY if not pair.randomises]


def hooks_of(pair: Case) -> tuple[str, ...]:
    """The hooks a pair's scheme has: what decides its route through adapter and engine."""
    with pair.patched() as model:
        scheme = scheme_of(model)
        kept = ("table kept",) if scheme.keeps_table else ()
        return (pair.model_name, *kept, *(hook for hook in HOOKS if implements(scheme, hook)))


def one_of_each(pairs: list[Case]) -> list[Case]:
    """The first pair of every combination of hooks and model."""
    first: dict[tuple[str, ...], Case] = {}
    for pair in pairs:
        first.setdefault(hooks_of(pair), pair)
    return list(first.values())


BY_HOOK = one_of_each(PAIRS)
CONTINUED_BY_HOOK = [pair for pair in BY_HOOK if pair in CONTINUED]
