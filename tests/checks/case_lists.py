"""Cases for which the checks are asserted. Registered schemes are included automatically."""

from __future__ import annotations

from hf_posenc import checks
from hf_posenc.checks import Case
from hf_posenc.schemes.base import implements
from hf_posenc.schemes.build import build
from hf_posenc.schemes.spec import plan

HOOKS = (
    *("embed", "read_table", "reposition", "rotation", "row_rotation", "retune", "regions", "prepare"),
    *("extra_key_channels", "bias", "values", "query_scale", "row_scale"),
    *("logit_scale", "sink", "visible", "kept_keys"),
)

CASES = checks.cases()
COMPOSED = [
    Case("llama", "yarn+logn", factor=4),
    Case("llama", "rerope+logn", factor=4),
    Case("llama", "pi+self_extend", factor=4),
    Case("llama", "rope+alibi", factor=4),
    Case("llama", "dynamic_ntk+logn", factor=4),
    Case("llama", "dynamic_yarn+ssmax", factor=4),
    Case("llama", "dynamic_yarn+t5", factor=4),  # a factor of each query's logits beside a bias, by length
    Case("llama", "dynamic_ntk+ssmax+t5", factor=4),
    Case("llama", "host+yarn", factor=4),
    Case("llama", "alibi+window", factor=4),
    Case("llama", "rope", factor=4, layers={"1": "none"}),
    Case("gpt2", "rope+rerope", factor=4),
    Case("gpt2", "yarn", factor=4, layers={"::2": "alibi"}),
    Case("gpt2", "sinusoidal+t5", factor=4),
    Case("bert", "rope+t5", factor=4),
    Case("bert", "dynamic_ntk+fox", factor=4),  # rows of different lengths, each with gates of its own
    Case("bert_decoder", "rope+self_extend", factor=4),
    Case("llama", "yarn+dca", factor=4),
    Case("llama", "llama3+string", factor=4),
    Case("llama", "yarn+sinks+logn", factor=4, sinks=3, recent=13),
    Case("llama", "yarn+resonance+jet_long", factor=4),
    Case("llama", "jet_long", factor=4, key_cache="copies"),
    Case("llama", "alibi+sinks", factor=4, sinks=3, recent=13),
    Case("llama", "sinks", factor=4, learned_logit=True),
    Case("llama", "longrope+logn", factor=4),
    Case("llama", "leaky_rerope", factor=4, key_cache="one"),
    Case("llama", "lm_infinite", factor=4, key_cache="one"),
    Case("llama", "rope+fox", factor=4),
    Case("llama", "lm_infinite+fox", factor=4),  # the cache may drop none of the keys that the gates stand beside
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
ALL_CASES = [*CASES, *COMPOSED]
DECODERS = [case for case in ALL_CASES if case.causal]
CACHEABLE = [case for case in DECODERS if case.continues_texts]


def hooks_of(case: Case) -> tuple[str, ...]:
    """The model, and the hooks that the scheme overrides: these decide the route through adapter and engine."""
    scheme = build(plan(case.scheme), case.geometry, case.model_name)
    keeps_table = ("keeps table",) if scheme.keeps_table else ()
    return (case.model_name, *keeps_table, *(hook for hook in HOOKS if implements(scheme, hook)))


def first_of_each(cases: list[Case]) -> list[Case]:
    """The first case of each combination of hooks and model."""
    first: dict[tuple[str, ...], Case] = {}
    for case in cases:
        first.setdefault(hooks_of(case), case)
    return list(first.values())


ONE_PER_HOOKS = first_of_each(CASES)
# A BERT decoder shares its modules with BERT and its masks with GPT-2.
QUICK = [case for case in ONE_PER_HOOKS if case.model_name != "bert_decoder"]
CACHEABLE_ONE_PER_HOOKS = [case for case in ONE_PER_HOOKS if case in CACHEABLE]
