"""A bias of the key alone: one stride-0 mask row beside the causal flag, in one kernel call.

    score[i, j] = q_i · k_j · scaling + c_j

The mask is float32 whatever the queries are: in bfloat16 its steps would be larger than the differences it carries.
"""

from __future__ import annotations

from torch import Tensor

from hf_posenc.attention import flash_cpu
from hf_posenc.attention.call import Call
from hf_posenc.terms import KeyBias


def accepts(call: Call) -> bool:
    """Causal prefill or decoding on the CPU, with key biases and nothing else."""
    terms = call.terms
    return (
        (call.triangle or call.last_row)
        and call.ctx.causal
        and len(terms.bias) > 0
        and all(isinstance(b, KeyBias) and not b.values.requires_grad for b in terms.bias)
        and terms.only("bias")
        and flash_cpu.usable(call.queries[0], call.keys[0], call.values)
    )


def attend(call: Call) -> Tensor:
    """Mixed values ``[batch, heads, query, value_dim]``."""
    scale = call.terms.logit_scale
    mask = sum(b.values for b in call.terms.bias if isinstance(b, KeyBias))
    mixed, _ = flash_cpu.attend(
        call.queries[0],
        call.keys[0],
        call.values,
        causal=call.query_length > 1,
        mask=(mask * scale)[:, :, None, :],  # type: ignore[index]
        scale=call.scaling * scale,
    )
    return mixed
