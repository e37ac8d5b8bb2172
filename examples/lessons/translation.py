"""A decoder that reads a source by cross-attention: does it know in which order that was written?"""

from __future__ import annotations

from functools import lru_cache

import torch
from teaching import Result, Table, lesson
from tiny_models import (
    SAME,
    apart,
    hidden,
    named,
    patched,
    tokens,
)
from torch import Tensor
from transformers import BertConfig, BertLMHeadModel

from hf_posenc.checks.tiny_models import (
    HEADS,
    TRAINED_LENGTH,
    VOCABULARY,
    WIDTH,
    sharpen_attention,
)
from hf_posenc.core.random_state import drawn_from

SOURCES = ("cat sat on mat", "mat sat on cat")


@lesson(
    "Cat on mat or mat on cat: what does a translator read?",
    schemes=("none", "sinusoidal", "rope"),
)
def translation(schemes: tuple[str, ...]) -> Result:
    """Logits of one decoder with positions of its own for both encoded sentences, under each scheme."""
    cat, target = tokens(SOURCES[0]), torch.tensor([[7, 8, 9]])
    mat = cat[:, [SOURCES[0].split().index(word) for word in SOURCES[1].split()]]
    rows = []
    for scheme in schemes:
        encoder = patched("bert", scheme)
        words = [next_words(target, hidden(encoder, source)) for source in (cat, mat)]
        rows.append((scheme, apart(*words), apart(*words) < SAME))
    shows = f"""An encoder reads “{SOURCES[0]}” or “{SOURCES[1]}”; a decoder reads the result by cross-attention and
        names the next words of its translation. In softmax(Q (P K)ᵀ) P V the order P cancels, so that it must come
        from the encoder's positions; the decoder's own say nothing of the source."""
    same = [row[0] for row in rows if row[2]]
    other = [row[0] for row in rows if not row[2]]
    conclusion = (
        f"With {named(same)} in the encoder both sentences are translated alike; with {named(other)} they are not."
    )
    return (
        shows,
        [Table(("scheme of the encoder", "largest difference of the next words", "the same"), tuple(rows))],
        conclusion,
    )


@torch.no_grad()
def next_words(target: Tensor, source: Tensor) -> Tensor:
    """Logits ``[n, words]`` of a decoder that has written ``target [1, n]`` and attends to ``source [m, width]``."""
    return decoder()(target, encoder_hidden_states=source[None], use_cache=False).logits[0]


@lru_cache(maxsize=1)
def decoder() -> BertLMHeadModel:
    """A small decoder with cross-attention and random weights."""
    config = BertConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_hidden_layers=2, intermediate_size=2 * WIDTH,
        vocab_size=VOCABULARY, max_position_embeddings=TRAINED_LENGTH, is_decoder=True, add_cross_attention=True,
    )  # fmt: skip
    with drawn_from(1):
        model = BertLMHeadModel(config).eval()
        sharpen_attention(model)
    return model


if __name__ == "__main__":
    translation.main()
