"""Who needs positions? Recurrent and convolutional readers do not, and not every transformer does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

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
from torch import Tensor, nn

SENTENCE = "not good but bad"
MIXED = (3, 1, 2, 0)
WIDTH = 32
Network: TypeAlias = Callable[[Tensor], Tensor]


@lesson("Which networks know the order of words by themselves?")
def readers() -> Result:
    """Mean outputs of five networks for a sentence, and for the same with two words swapped."""
    ids = tokens(SENTENCE)
    pairs = (ids, ids[:, torch.tensor(MIXED)])
    rows = [(name, apart(*(network(one) for one in pairs))) for name, network in networks().items()]
    shows = f"""Networks with random weights read “{SENTENCE}” and the same words with first and last swapped; their
        outputs are averaged over the words. A network that gives the same for both cannot classify them differently."""
    knows = [name for name, moved in rows if moved >= SAME]
    blind = [name for name, moved in rows if moved < SAME]
    conclusion = (
        f"The order changes {named(knows)}. It does not change {named(blind)}, which need an encoding of position."
    )
    table = Table(("network", "largest difference", "knows the order"), tuple((n, d, d >= SAME) for n, d in rows))
    return shows, [table], conclusion


def networks() -> dict[str, Network]:
    """Functions of ids ``[1, n]`` to a vector."""
    torch.manual_seed(0)
    words, gru = nn.Embedding(96, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
    convolution, each = nn.Conv1d(WIDTH, WIDTH, 3, padding=1), nn.Linear(WIDTH, WIDTH)
    encoder, decoder = patched("bert", "none"), patched("llama", "none")

    def quietly(network: Network) -> Network:
        return torch.no_grad()(network)

    def bag(ids: Tensor) -> Tensor:
        return each(words(ids)).relu().mean(1)

    return {
        "a recurrent network": quietly(lambda ids: gru(words(ids))[0].mean(1)),
        "a convolution": quietly(lambda ids: convolution(words(ids).mT).relu().mean(-1)),
        "a layer for each word": quietly(bag),
        "an encoder without positions": lambda ids: hidden(encoder, ids).mean(0),
        "a decoder without positions": lambda ids: hidden(decoder, ids).mean(0),
    }


if __name__ == "__main__":
    readers.main()
