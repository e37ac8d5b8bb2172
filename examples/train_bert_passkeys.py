"""Train a BERT to recall a passkey whose digits are all masked: the last stage of the training of `starter:bert`.

    python examples/train_starters.py bert --out runs/starters --export runs/starters/first
    python examples/train_bert_passkeys.py --start runs/starters/first --out runs/starters/second --export …   # resumes

The model at the start recalls one masked digit if it sees the others, but nothing if all are masked. In six of ten
rows, 1 to n neighbouring tokens of an answer are masked; an answer is a space and five digits. n grows from 1 to 6 over
the first half of the training. The other rows are masked text.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import sysconfig
import time
from pathlib import Path

import torch
from starter_rows import CLS, IGNORED, MASK, PAD, SEP, SPECIAL, TRAINED_LENGTH, VOCABULARY, Rows
from tokenizers import Tokenizer
from torch import Tensor, nn
from training_state import check_command, load_state, save_state
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

from hf_posenc.eval.texts.measured_text import HELD_OUT, TRAINING, module_text

ROOM, ANSWER = TRAINED_LENGTH - 2, 6
PASSKEYS = 0.6
"""Share of the rows with a passkey."""
WEIGHT = 5.0
"""Weight of an answer's token in the loss; other tokens have weight 1."""


def main() -> None:
    arguments = parse()
    before = json.loads((arguments.start / "made.json").read_text())["commands"]
    torch.manual_seed(arguments.seed)
    arguments.out.mkdir(parents=True, exist_ok=True)
    model = AutoModelForMaskedLM.from_pretrained(arguments.start, dtype=torch.float32, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(arguments.start, local_files_only=True)
    plain = Tokenizer.from_file(str(arguments.start / "tokenizer.json"))
    plain.post_processor = None  # rows get their first and last token below
    texts = [text for name in TRAINING if (text := module_text(name))]
    rows = Rows(plain, texts, masked=True, drill_share=0.0, seed=arguments.seed)
    train(model, rows, arguments)
    if arguments.export:
        model.to(torch.bfloat16).save_pretrained(arguments.export)
        tokenizer.save_pretrained(arguments.export)
        (arguments.export / "made.json").write_text(json.dumps(made(arguments, before), indent=2) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", type=Path, required=True, help="folder of a BERT that train_starters.py exported")
    parser.add_argument("--out", type=Path, required=True, help="folder of the training states")
    parser.add_argument("--export", type=Path, help="folder to write the finished model and tokenizer to")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=8, help=f"rows of {TRAINED_LENGTH} tokens per step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=100)
    return parser.parse_args()


def train(model: PreTrainedModel, rows: Rows, arguments: argparse.Namespace) -> None:
    """Train with linear warm-up, a constant rate, and linear decay over the last 40 %; resume from a saved state."""
    file, command = arguments.out / "bert.safetensors", command_of(arguments)
    check_command(file, command)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, betas=(0.9, 0.98), weight_decay=0.0)
    first = load_state(file, model, [optimizer]) if file.exists() else 0
    model.train()
    for step in range(first, arguments.steps):
        done = step / arguments.steps
        for group in optimizer.param_groups:
            group["lr"] = arguments.lr * min(1.0, (step + 1) / 50, (1 - done) / 0.4)
        rng = random.Random(f"{arguments.seed}-{step}")
        drawn = [masked_row(rows, done, rng) for _ in range(arguments.batch)]
        loss = weighted_loss(model, *(torch.stack(part) for part in zip(*drawn, strict=True)))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 25 == 0:
            print(f"step {step + 1}  loss {loss.item():.3f}  {time.process_time() / 60:.1f} min", flush=True)
        if (step + 1) % arguments.save_every == 0 or step + 1 == arguments.steps:
            save_state(file, model, [optimizer], step + 1, command)


def masked_row(rows: Rows, done: float, rng: random.Random) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a row at a share ``done`` of the training: masked tokens, labels, and the weight of the row."""
    with_passkey = rng.random() < PASSKEYS
    row, end = passkey_row(rows, rng) if with_passkey else (edged(rows.window(rng, ROOM)), 0)
    if with_passkey:
        count = rng.randint(1, min(ANSWER, 1 + int(ANSWER * done / 0.5)))
        start = end - ANSWER + rng.randint(0, ANSWER - count)
        places = list(range(start, start + count))
    else:
        places = [place for place in range(1, len(row) - 1) if rng.random() < 0.2]
    masked, labels = row.clone(), torch.full_like(row, IGNORED)
    labels[places] = row[places]
    for place in places:
        seen = not with_passkey and rng.random() < 0.1
        masked[place] = rng.randrange(len(SPECIAL), VOCABULARY) if seen else MASK
    return masked, labels, torch.tensor(WEIGHT if with_passkey else 1.0)


def passkey_row(rows: Rows, rng: random.Random) -> tuple[Tensor, int]:
    """A passkey prompt with its answer, padded or surrounded by text, and the index after the answer."""
    drill = rng.choice(rows.drills)[-ROOM:]
    left = ROOM - len(drill)
    if rng.random() < 0.5:
        return torch.cat((edged(drill), torch.full((left,), PAD))), 1 + len(drill)
    before = rng.randint(0, left)
    row = edged(torch.cat((rows.window(rng, before), drill, rows.window(rng, left - before))))
    return row, 1 + before + len(drill)


def edged(body: Tensor) -> Tensor:
    """Add the special tokens at both ends."""
    return torch.cat((torch.tensor([CLS]), body, torch.tensor([SEP])))


def weighted_loss(model: PreTrainedModel, ids: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean over the masked tokens of a batch; ``weights [rows]``."""
    logits = model(input_ids=ids, attention_mask=(ids != PAD).long()).logits
    losses = nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
    ).view(labels.shape)
    of_token = weights[:, None] * (labels != IGNORED)
    return (losses * of_token).sum() / of_token.sum()


def command_of(arguments: argparse.Namespace) -> str:
    """The command of this training, with the options that change its result."""
    options = {"--steps": arguments.steps, "--batch": arguments.batch, "--lr": arguments.lr, "--seed": arguments.seed}
    words = [f"--start {arguments.start.name}", *(f"{name} {value:g}" for name, value in options.items())]
    return f"python examples/train_bert_passkeys.py {' '.join(words)}"


def made(arguments: argparse.Namespace, before: list[str]) -> dict[str, object]:
    """Content of made.json: all commands that made the model, and the versions they ran with."""
    return {
        "commands": [*before, command_of(arguments)], "python": sys.version.split()[0],
        "stdlib": sysconfig.get_python_version(), "torch": torch.__version__, "held_out": HELD_OUT,
    }  # fmt: skip


if __name__ == "__main__":
    main()
