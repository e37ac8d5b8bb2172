"""Extend a causal model's context: patch it with a scheme, fine-tune it briefly with LoRA, measure before and after.

    python examples/finetune_lora.py --output runs/yarn8          # the bundled starter Llama, minutes on a CPU
    python examples/finetune_lora.py --model HuggingFaceTB/SmolLM2-135M --scheme yarn --factor 4 --text book.txt \\
        --length 8192 --steps 200 --learning-rate 2e-4 --bf16 --output runs/smol

The folder gets checkpoints and the finished PEFT adapter with its scheme beside it. Killed? Add --resume. To load it:

    hf_posenc.from_pretrained(MODEL, peft_adapter="runs/yarn8")
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn
from transformers import AutoTokenizer

import hf_posenc
from hf_posenc.errors import PosEncError
from hf_posenc.eval.text import HELD_OUT, TRAINING, module_text
from hf_posenc.finetune import finetune_lora

SCORED = 256  # tokens at the end of each window
WINDOWS = 8


def main() -> None:
    """Run, and say in words what the caller can put right."""
    arguments = parse()
    try:
        run(arguments)
    except (PosEncError, OSError) as error:
        raise SystemExit(str(error)) from error


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama", help="a starter's name, a folder or a Hub name (default: llama)")
    parser.add_argument("--scheme", default="yarn", help="see `hf-posenc list` (default: yarn)")
    parser.add_argument("--factor", type=float, default=8.0, help="target length / trained length (default: 8)")
    parser.add_argument("--length", type=int, help="tokens a training row (default: the target length)")
    parser.add_argument("--steps", type=int, default=30, help="optimiser steps (default: 30)")
    parser.add_argument("--batch", type=int, default=1, help="rows a step (default: 1)")
    parser.add_argument(
        "--learning-rate", type=float, default=1e-3, help="peak (default: 1e-3; large models want less)"
    )
    parser.add_argument("--rank", type=int, default=16, help="of the LoRA matrices (default: 16)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text", type=Path, nargs="+", help="training text files (default: standard library sources)")
    parser.add_argument("--held-out", type=Path, nargs="+", help="text files to measure on (default: likewise, others)")
    parser.add_argument("--output", type=Path, required=True, help="folder of checkpoints and of the adapter")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --output")
    parser.add_argument("--save-every", type=int, default=20, help="steps between checkpoints (default: 20)")
    parser.add_argument("--gradient-checkpointing", action="store_true", help="less memory, more time")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16")
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> None:
    """Patch, measure, train, measure."""
    model, tokenizer = load(arguments.model)
    trained = hf_posenc.describe(hf_posenc.patch_model(model, arguments.scheme, factor=arguments.factor))
    print(trained)
    target = trained.target_length
    texts, held_out = read(arguments.text, TRAINING), read(arguments.held_out, HELD_OUT)
    windows = cut(tokenizer, held_out, target)
    before = loss(model, windows)
    print(f"before: {before:.3f} nats a token at {target} tokens, held out")
    with bar() as progress:
        task = progress.add_task("training", total=1.0, loss="")
        adapted = finetune_lora(
            model, tokenizer, texts=texts, length=arguments.length or target, steps=arguments.steps,
            batch=arguments.batch, learning_rate=arguments.learning_rate, rank=arguments.rank, seed=arguments.seed,
            gradient_checkpointing=arguments.gradient_checkpointing, bf16=arguments.bf16, output=arguments.output,
            resume=arguments.resume, save_every=arguments.save_every,
            progress=lambda share, value: progress.update(task, completed=share, loss=f"loss {value:.3f}"),
        )  # fmt: skip
    after = loss(adapted, windows)
    print(f"after:  {after:.3f} nats a token, {before - after:+.3f} better")
    print(f"adapter: {arguments.output}")


def load(name: str) -> tuple[Any, Any]:
    """A starter, or a model and its tokenizer from a folder or the Hub."""
    if name in ("llama", "gpt2"):
        return hf_posenc.load_starter(name)  # type: ignore[arg-type]
    return hf_posenc.from_pretrained(name), AutoTokenizer.from_pretrained(name)


def read(files: list[Path] | None, modules: tuple[str, ...]) -> list[str]:
    """The files, or modules of the standard library."""
    if files is None:
        return [module_text(name) for name in modules]
    return [file.read_text(encoding="utf-8") for file in files]


def cut(tokenizer: Any, texts: list[str], length: int) -> torch.Tensor:
    """Windows of ``length`` tokens, spread over the text, ``[window, length]``."""
    tokens = torch.tensor(tokenizer("\n".join(texts), add_special_tokens=False, verbose=False)["input_ids"])
    if len(tokens) < length:
        raise SystemExit(f"The held-out text has {len(tokens)} tokens, less than {length}. Give more with --held-out.")
    starts = torch.linspace(0, len(tokens) - length, WINDOWS).long().tolist()
    return torch.stack([tokens[start : start + length] for start in starts])


@torch.no_grad()
def loss(model: nn.Module, windows: torch.Tensor) -> float:
    """Nats a token over the last tokens of every window."""
    model.eval()
    device = next(model.parameters()).device
    scored = min(SCORED, windows.shape[1] - 1)
    losses = []
    for window in windows.to(device):
        logits = model(window[None], logits_to_keep=scored + 1).logits[0, :-1].float()
        losses.append(nn.functional.cross_entropy(logits, window[-scored:]).item())
    return sum(losses) / len(losses)


def bar() -> Progress:
    """Share done, time left and the step's loss."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[loss]}")
    )


if __name__ == "__main__":
    main()
