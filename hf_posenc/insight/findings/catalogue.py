"""All findings: importing a module of `hf_posenc.insight.findings.published` registers its finding."""

from __future__ import annotations

from hf_posenc.errors import UnknownFinding, nearest
from hf_posenc.insight.findings.finding import Finding
from hf_posenc.insight.findings.published import (  # noqa: F401
    alibi_extrapolation,
    attention_fading,
    bert_beyond_table,
    content_positions,
    drope,
    dynamic_ntk_cache,
    lora_norms_embeddings,
    lost_in_the_middle,
    nope_length,
    pi_few_steps,
    pose,
    randomized_positions,
    relative_bias_order,
    rope_base,
    rotation_pairs,
    streaming_cliff,
    zero_shot_order,
)
from hf_posenc.insight.findings.registry import registered_findings


def all_findings() -> dict[str, Finding]:
    """Return all findings by name, sorted."""
    return dict(sorted(registered_findings().items()))


def finding_named(name: str) -> Finding:
    """The finding of that name.

    Raises:
        UnknownFinding: there is none.
    """
    known = all_findings()
    if name not in known:
        raise UnknownFinding(
            f"There is no finding {name!r}.{nearest(name, known)} `hf-posenc reproduce --list` lists them."
        )
    return known[name]
