"""Attention without positions follows its input wherever it goes, and a sum over words does not notice at all."""

from __future__ import annotations

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

SENTENCE = "a man bites the dog that never barked"
ORDER = (4, 0, 6, 2, 7, 1, 3, 5)


@lesson(
    "What happens when words change places?",
    schemes=("none", "sinusoidal", "rope", "alibi"),
)
def permutation(schemes: tuple[str, ...]) -> Result:
    """Outputs of an encoder for a sentence and the same words in another order."""
    ids, order = tokens(SENTENCE), torch.tensor(ORDER)
    rows = []
    for scheme in schemes:
        encoder = patched("bert", scheme)
        straight, mixed = hidden(encoder, ids), hidden(encoder, ids[:, order])
        asks = torch.randn(straight.shape[1], generator=torch.Generator().manual_seed(0))
        pooled = [torch.softmax(outputs @ asks, dim=0) @ outputs for outputs in (straight, mixed)]
        rows.append((scheme, apart(mixed, straight[order]), apart(mixed.mean(0), straight.mean(0)), apart(*pooled)))
    shows = f"""An encoder f reads “{SENTENCE}” and the same words in another order P. Without mask and positions scores
        become P S Pᵀ, so that f(P x) = P f(x): equivariance. What is then pooled over the words, by mean or by
        attention, is the same for both sentences: invariance."""
    follow = [row[0] for row in rows if row[1] < SAME]
    blind = [row[0] for row in rows if max(row[2], row[3]) < SAME]
    ordered = [row[0] for row in rows if row[0] not in blind]
    conclusion = (
        f"Outputs follow the words under {named(follow)}, and pooled outputs do not know the order under "
        f"{named(blind)}; under {named(ordered)} they do."
    )
    columns = ("scheme", "f(P x) against P f(x)", "mean over words", "attention over words")
    return shows, [Table(columns, tuple(rows))], conclusion


if __name__ == "__main__":
    permutation.main()
