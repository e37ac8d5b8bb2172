"""Write an adapter of your own in one file: GPT-NeoX (Pythia), which can then be patched with every scheme.

    python examples/third_party_adapter.py

GPT-NeoX projects q, k and v in one matrix, head by head, and rotates a share of each head's channels
(``partial_rotary_factor``). Its layers compute attention and MLP in parallel, which needs no change. To make
``patch_model`` find the adapter without an import, name it in the ``pyproject.toml`` of your own package:

    [project.entry-points."hf_posenc.adapters"]
    gpt_neox = "your_package.gpt_neox:GPTNeoXAdapter"
"""

from typing import ClassVar

from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
from transformers.models.gpt_neox import modeling_gpt_neox as gpt_neox

from hf_posenc.extend import (
    Adapter,
    AddsPositionCode,
    DisabledRotary,
    Geometry,
    PatchedAttention,
    as_configured,
    eager_mask,
    host_rotary,
    implements,
    register_adapter,
)


class PatchedGPTNeoXAttention(PatchedAttention, gpt_neox.GPTNeoXAttention):
    """Self-attention that passes unrotated queries and keys to the scheme; parameters and outputs stay the same."""

    host_eager = staticmethod(gpt_neox.eager_attention_forward)

    def project(self, x):
        """q, k and v of ``x [..., width]``, each ``[..., heads, head_dim]``."""
        return self.query_key_value(x).unflatten(-1, (-1, 3 * self.head_size)).chunk(3, dim=-1)

    def project_query(self, x):
        return self.project(x)[0].transpose(0, 1)

    def project_key(self, x):
        return self.project(x)[1].transpose(0, 1)

    def forward(self, hidden_states, attention_mask=None, layer_past=None, position_embeddings=None, **call):
        q, k, v = (x.transpose(1, 2) for x in self.project(hidden_states))
        mixed, weights = self.attend(q, k, v, hidden=hidden_states, cache=layer_past, mask=attention_mask, host=call)
        return self.dense(mixed.flatten(2)), weights


class CodedGPTNeoXLayer(AddsPositionCode, gpt_neox.GPTNeoXLayer):
    """First layer, to whose inputs schemes such as ``sinusoidal`` add their codes."""


class DisabledGPTNeoXRotaryEmbedding(DisabledRotary, gpt_neox.GPTNeoXRotaryEmbedding):
    """The model's own rotation, switched off."""


@register_adapter("gpt_neox")
class GPTNeoXAdapter(Adapter):
    """Describes to the package where GPT-NeoX keeps position."""

    attention: ClassVar = {gpt_neox.GPTNeoXAttention: PatchedGPTNeoXAttention}
    base_class = gpt_neox.GPTNeoXModel
    length_dependent = ("dynamic", "longrope")

    def geometry(self, config, *, trained_length, target_length):
        heads, head_dim = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        rotated = int(head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0))
        return Geometry(
            heads=heads, kv_heads=heads, head_dim=head_dim, width=config.hidden_size,
            layers=config.num_hidden_layers, causal=True, trained_length=trained_length, target_length=target_length,
            rotary=host_rotary(config, head_dim, dims=rotated, by_length=self.length_dependent),
        )  # fmt: skip

    def swaps(self, base, scheme):
        yield base.rotary_emb, DisabledGPTNeoXRotaryEmbedding
        if implements(scheme, "embed"):
            yield base.layers[0], CodedGPTNeoXLayer

    def probe(self, base, hidden, positions, layer):
        if isinstance(base.layers[0], CodedGPTNeoXLayer):
            hidden = base.layers[0].coded(hidden, positions)
        block, cos_sin = base.layers[layer], as_configured(base.rotary_emb)(hidden, positions)
        mask = eager_mask(block.attention, hidden)
        normed = block.input_layernorm(hidden)
        return block.attention(normed, mask, position_embeddings=cos_sin, position_ids=positions)[0]


if __name__ == "__main__":
    from hf_posenc import describe, patch_model

    model = GPTNeoXForCausalLM(GPTNeoXConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=2))
    print(describe(patch_model(model, "yarn", factor=4)))
