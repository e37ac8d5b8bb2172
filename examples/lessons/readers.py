"""Which networks know the order of words by themselves?

Networks with random weights read “not good but bad” and the same words with “not” and “bad” swapped; their outputs are
averaged over the words. A network with equal outputs cannot classify the two sentences differently. This is the case
for a layer applied to each word, and for an encoder without positions. Recurrence, convolution and a causal mask
distinguish the order.
"""

import torch
from lesson import SAME, apart, hidden, patched, show, tokens
from torch import nn

torch.manual_seed(0)
words, gru = nn.Embedding(96, 32), nn.GRU(32, 32, batch_first=True)
convolution, linear = nn.Conv1d(32, 32, 3, padding=1), nn.Linear(32, 32)
encoder, decoder = patched("bert", "none"), patched("llama", "none")
networks = {
    "a recurrent network": lambda ids: gru(words(ids))[0].mean(1),
    "a convolution": lambda ids: convolution(words(ids).mT).relu().mean(-1),
    "a layer for each word": lambda ids: linear(words(ids)).relu().mean(1),
    "an encoder without positions": lambda ids: hidden(encoder, ids).mean(0),
    "a decoder without positions": lambda ids: hidden(decoder, ids).mean(0),
}
ids = tokens("not good but bad")
with torch.no_grad():
    rows = {name: apart(network(ids), network(ids[:, [3, 1, 2, 0]])) for name, network in networks.items()}
show(("network", "largest difference"), rows.items())
blind = [name for name, moved in rows.items() if moved < SAME]
assert blind == ["a layer for each word", "an encoder without positions"]
