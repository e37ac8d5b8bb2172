"""A bias of the key alone: one stride-0 mask row beside the causal flag, in one kernel call for a block of rows.

    score[i, j] = q_i · k_j · scaling + c_j − c_s        s = the first row of the block

The constant of a block changes nothing but the digits that are left for the scores. It is the first row's, so that no
row's rounding knows what comes after it. The mask is float32 whatever the queries are: in bfloat16 its steps would be
larger than the differences it carries.
"""

from __future__ import annotations

from torch import Tensor

from hf_posenc.attention import flash_cpu, parts
from hf_posenc.attention.call import Call
from hf_posenc.attention.parts import Part
from hf_posenc.terms import KeyBias

# A short text is worth its digits: of 64 rows a slope of 1/2 makes no more than 32, whose last digit is 2e-6. In a long
# one that many calls take a quarter of the time; 1024 rows cost 1 to 5 % and still lose a fifth of what one count does.
SHORT = 1024
ROWS = {True: 64, False: 1024}


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
    values = sum(b.values for b in call.terms.bias if isinstance(b, KeyBias))
    scale = call.terms.logit_scale
    cuts, step = [], ROWS[call.query_length <= SHORT]
    for start in range(0, call.query_length, step):
        rows = slice(start, min(start + step, call.query_length))
        first, end = call.first_row + rows.start, call.first_row + rows.stop
        mask = counted_from(values, slice(first, first + 1)) * scale  # type: ignore[arg-type]
        if first > 0:
            cuts.append(Part(0, rows, slice(0, first), mask=mask[..., :first]))
        cuts.append(Part(0, rows, slice(first, end), causal=True, mask=mask[..., first:end]))
    return parts.attend(call.queries, call.keys, call.values, cuts, call.scaling * scale)


def counted_from(values: Tensor, places: slice) -> Tensor:
    """``values [batch, heads, key]`` minus those of some rows' own places, ``[batch, heads, row, key]``, float32."""
    return (values[:, :, None, :] - values[:, :, places, None]).float()
