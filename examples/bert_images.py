"""BERT on images: patches are embeddings, and their rows and columns are positions.

    python examples/bert_images.py            # two minutes on a CPU

Two patches of an image are marked: are they in the same row, in the same column, or in neither? Each classifier is
trained on 6 × 6 patches: without positions, with positions in raster order (``rope``), or with rows and columns
(``rope_nd``). It is then also tested on images of other shapes, where only rows and columns keep their meaning.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from hf_posenc import patch_model

WIDTH, KINDS = 64, ("row", "column", "neither")
SHAPES = ((6, 6), (6, 9), (9, 6))


class ImageClassifier(nn.Module):
    """A small BERT, patched, and a classifier on the mean of its outputs."""

    def __init__(self, scheme: str) -> None:
        super().__init__()
        config = BertConfig(
            hidden_size=WIDTH, num_attention_heads=4, num_hidden_layers=2, intermediate_size=128, vocab_size=2,
            max_position_embeddings=36, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.bert = patch_model(BertModel(config, add_pooling_layer=False), scheme)
        self.takes_coordinates = scheme == "rope_nd"
        self.classify = nn.Linear(WIDTH, len(KINDS))

    def forward(self, patches: Tensor, coordinates: Tensor) -> Tensor:
        """``patches [batch, token, width]`` at ``coordinates [axes, token]`` to logits ``[batch, kind]``."""
        batch = len(patches)
        positions = coordinates[:, None].expand(-1, batch, -1) if self.takes_coordinates else None
        return self.classify(self.bert(inputs_embeds=patches, position_ids=positions).last_hidden_state.mean(1))


def images(count: int, height: int, width: int, mark: Tensor, draws: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw noise images with two marked patches: patches, kind of each image, and coordinates of all patches."""
    kind = torch.randint(0, 3, (count,), generator=draws)
    row, column = (torch.randint(0, side, (count,), generator=draws) for side in (height, width))
    down = torch.randint(1, height, (count,), generator=draws) * (kind != 0)
    right = torch.randint(1, width, (count,), generator=draws) * (kind != 1)
    patches = torch.randn(count, height * width, WIDTH, generator=draws)
    each_image = torch.arange(count)
    patches[each_image, row * width + column] += mark
    patches[each_image, (row + down) % height * width + (column + right) % width] += mark
    token = torch.arange(height * width)
    return patches, kind, torch.stack((token // width, token % width))


def trained(scheme: str, steps: int, mark: Tensor) -> ImageClassifier:
    """Train a classifier on ``steps`` batches of images of the first shape."""
    torch.manual_seed(0)
    classifier, draws = ImageClassifier(scheme), torch.Generator().manual_seed(1)
    optimiser = torch.optim.AdamW(classifier.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps)
    for _ in range(steps):
        patches, kind, coordinates = images(64, *SHAPES[0], mark, draws)
        optimiser.zero_grad()
        nn.functional.cross_entropy(classifier(patches, coordinates), kind).backward()
        optimiser.step()
        schedule.step()
    return classifier.eval()


@torch.no_grad()
def accuracy(classifier: ImageClassifier, height: int, width: int, mark: Tensor) -> float:
    """Share of new images that are classified correctly."""
    patches, kind, coordinates = images(500, height, width, mark, torch.Generator().manual_seed(2))
    return float((classifier(patches, coordinates).argmax(-1) == kind).float().mean())


def main() -> None:
    """Train and measure one classifier per scheme."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600, help="training batches per scheme (default: 600)")
    steps = parser.parse_args().steps
    mark = 3 * torch.randn(WIDTH, generator=torch.Generator().manual_seed(3))
    print("accuracy; chance is 0.33")
    print(f"{'':9}", *(f"{height} × {width}" for height, width in SHAPES), sep="  ")
    for scheme in ("none", "rope", "rope_nd"):
        classifier = trained(scheme, steps, mark)
        print(f"{scheme:9}", *(f"{accuracy(classifier, *shape, mark):5.2f}" for shape in SHAPES), sep="  ")


if __name__ == "__main__":
    main()
