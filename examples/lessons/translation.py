"""Cat on mat or mat on cat: what does a translator read?

An encoder reads one of the sentences; a decoder reads its output by cross-attention and predicts the next words. In
softmax(Q (P K)ᵀ) P V the order P cancels, so the order must come from positions in the encoder. The decoder's own
positions say nothing about the source. Without positions in the encoder, both sentences have the same translation.
"""

import torch
from lesson import SAME, apart, hidden, patched, schemes, show, tokens
from transformers import BertConfig, BertLMHeadModel

from hf_posenc.checks.tiny_models import HEADS, TRAINED_LENGTH, VOCABULARY, WIDTH, sharpen_attention

torch.manual_seed(1)
decoder = BertLMHeadModel(
    BertConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_hidden_layers=2, intermediate_size=2 * WIDTH,
        vocab_size=VOCABULARY, max_position_embeddings=TRAINED_LENGTH, is_decoder=True, add_cross_attention=True,
    )
).eval()  # fmt: skip
sharpen_attention(decoder)
cat = tokens("cat sat on mat")
mat = cat[:, [3, 1, 2, 0]]  # mat sat on cat
rows = {}
for scheme in ("none", *schemes("sinusoidal", "rope")):
    encoder = patched("bert", scheme)
    with torch.no_grad():
        first, second = (
            decoder(torch.tensor([[7, 8, 9]]), encoder_hidden_states=hidden(encoder, source)[None]).logits
            for source in (cat, mat)
        )
    rows[scheme] = apart(first, second)
show(("scheme of the encoder", "largest difference of the next words"), rows.items())
assert [scheme for scheme, moved in rows.items() if moved < SAME] == ["none"]
