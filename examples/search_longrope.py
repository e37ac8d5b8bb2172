"""Search LongRoPE's factors for a model on your own text, and measure them on other text.

    python examples/search_longrope.py                                    # the bundled starter Llama, a minute on a CPU
    python examples/search_longrope.py --model HuggingFaceTB/SmolLM2-135M --factor 4 --text book.txt --budget 120 \\
        --held-out other.txt --state runs/smol.json --output runs/smol-long

Interrupted? Run it again with the same --state. To use the result:

    hf_posenc.patch_model(model, "longrope", factor=4, long_factor=[…])      # or from_pretrained of --output
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from common import load_model, progress_bar, run_command
from torch import Tensor, nn

import hf_posenc
from hf_posenc.eval.texts.stdlib_source import HELD_OUT, module_text
from hf_posenc.texts import TextSource, rendered
from hf_posenc.training.longrope_search import search_longrope

SEARCHED, MEASURED = HELD_OUT[:3], HELD_OUT[3:]  # modules the starter has not been trained on
RIVALS = ("pi", "ntk", "yarn")


def main() -> None:
    """Run, and say in words what the caller can put right."""
    run_command(run, parse())


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama", help="a starter's name, a folder or a Hub name (default: llama)")
    parser.add_argument("--factor", type=float, default=4.0, help="target length / trained length (default: 4)")
    parser.add_argument("--budget", type=int, default=40, help="how often the texts are read (default: 40)")
    parser.add_argument("--rows", type=int, default=3, help="texts of the target length (default: 3)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--text", nargs="+", help="texts to search on: files, folders or hub:NAME (default: standard library)"
    )
    parser.add_argument("--held-out", nargs="+", help="texts to measure on (default: likewise, others)")
    parser.add_argument("--state", type=Path, help="file to go on from, should the search be stopped")
    parser.add_argument("--output", type=Path, help="folder for the patched model")
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> None:
    """Search, then compare with schemes that need none."""
    model, tokenizer = load_model(arguments.model)
    trained = hf_posenc.describe(hf_posenc.patch_model(model, "longrope", factor=arguments.factor))
    hf_posenc.unpatch_model(model)
    searched, measured = (
        cut(tokenizer, read(names, modules, tokenizer), arguments.rows, trained.target_length)
        for names, modules in ((arguments.text, SEARCHED), (arguments.held_out, MEASURED))
    )
    with progress_bar() as progress:
        task = progress.add_task("searching", total=arguments.budget, loss="")
        found = search_longrope(
            model, searched, factor=arguments.factor, budget=arguments.budget, seed=arguments.seed,
            state=arguments.state,
            progress=lambda number, _, best: progress.update(task, completed=number, loss=f"best {best:.3f}"),
        )  # fmt: skip
    print(f"found in {len(found.history)} readings, from {found.grown_from}: {found.loss:.3f} nats/token,")
    print(f"one stretch for all pairs: {found.uniform_loss:.3f}")
    print("long_factor:", [round(factor, 4) for factor in found.long_factor])
    print(f"\non other text, beyond {trained.trained_length} of {trained.target_length} tokens:")
    for scheme in RIVALS:
        hf_posenc.patch_model(model, scheme, factor=arguments.factor)
        print(f"  {scheme:9}{loss(model, measured, trained.trained_length):.3f}")
        hf_posenc.unpatch_model(model)
    hf_posenc.patch_model(model, "longrope", factor=arguments.factor, long_factor=list(found.long_factor))
    print(f"  {'longrope':9}{loss(model, measured, trained.trained_length):.3f}")
    if arguments.output is not None:
        model.save_pretrained(arguments.output)
        tokenizer.save_pretrained(arguments.output)
        print(f"model: {arguments.output}")


def read(names: list[str] | None, modules: tuple[str, ...], tokenizer: Any) -> str:
    """The files, folders and datasets of these names, or modules of the standard library, as one text."""
    if names is None:
        return "\n".join(map(module_text, modules))
    return "\n".join(rendered(document, tokenizer) for document in TextSource.of_names(names).documents())


def cut(tokenizer: Any, text: str, rows: int, length: int) -> Tensor:
    """``rows`` windows of ``length`` tokens, spread over the text."""
    tokens = torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    if len(tokens) < length:
        raise SystemExit(
            f"A text has {len(tokens)} tokens, less than {length}. Give more of it, or a smaller --factor."
        )
    starts = torch.linspace(0, len(tokens) - length, rows).long().tolist()
    return torch.stack([tokens[start : start + length] for start in starts])


@torch.no_grad()
def loss(model: nn.Module, rows: Tensor, start: int) -> float:
    """Cross-entropy loss (nats/token) beyond position ``start``."""
    device, scored = next(model.parameters()).device, rows.shape[1] - start - 1
    losses = []
    for row in rows.to(device):
        logits = model(row[None], logits_to_keep=scored + 1).logits[0, :-1].float()
        losses.append(nn.functional.cross_entropy(logits, row[-scored:]).item())
    return sum(losses) / len(losses)


if __name__ == "__main__":
    main()
