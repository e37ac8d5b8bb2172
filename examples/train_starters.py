"""Train the bundled GPT-2 and BERT on text that every Python installation has.

    python examples/train_starters.py gpt2 --out runs/starters         # then bert; resumes when run again
    python examples/train_starters.py gpt2 --out runs/starters --export hf_posenc/starters/gpt2

The text is the source of the standard library with `pydoc_data`; the modules in `HELD_OUT` are never trained on. A
fifth of the rows are drills (a passkey to find, a passage to copy), from which a model of 2.4 M parameters learns to
retrieve within its 256 tokens; otherwise there would be no ability to lose beyond them. `train_bert_passkeys` trains
BERT further. A run that is resumed with more ``--steps`` keeps its state and uses the new schedule. Matrices are
trained with Muon, all other parameters with AdamW.

Together with `starter_rows`, this is the complete record of how the shipped weights were made.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import sysconfig
import time
from pathlib import Path

import torch
from starter_rows import CLS, END, IGNORED, PAD, SEP, SPECIAL, TRAINED_LENGTH, VOCABULARY, Rows, evaluation_rows
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from training_state import load_state, save_state
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from hf_posenc.eval.texts import passkey
from hf_posenc.eval.texts.measured_text import HELD_OUT, TRAINING, module_text


def main() -> None:
    arguments = parse()
    torch.manual_seed(arguments.seed)
    arguments.out.mkdir(parents=True, exist_ok=True)
    texts = [text for name in TRAINING if (text := module_text(name))]
    tokenizer = trained_tokenizer(texts, arguments.out / "tokenizer.json")
    model = build(arguments.model)
    print(f"{arguments.model}: {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    run = Run(model, arguments)
    rows = Rows(tokenizer, texts, masked=arguments.model == "bert", drill_share=arguments.drills, seed=arguments.seed)
    held_out = evaluation_rows(tokenizer, masked=arguments.model == "bert")
    commands = commands_so_far(arguments)
    run.train(rows, held_out)
    if arguments.export:
        export(model, tokenizer, arguments, commands)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("gpt2", "bert"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoints")
    parser.add_argument("--export", type=Path, help="folder to write the finished model and tokenizer to")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=16, help="rows of 256 tokens per step")
    parser.add_argument("--drills", type=float, default=0.12, help="share of rows that hold a passkey")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--muon-lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=250)
    parser.add_argument("--no-compile", action="store_true")
    return parser.parse_args()


def trained_tokenizer(texts: list[str], path: Path) -> Tokenizer:
    """Byte-level BPE with single digits, so that a passkey always has five tokens."""
    if path.exists():
        return Tokenizer.from_file(str(path))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    rng = random.Random(0)
    drills = [passkey.Passkey(passkey.draw_key(rng), 0.5).prompt(20) for _ in range(200)]
    tokenizer.train_from_iterator([*texts, *drills], trainer)
    tokenizer.save(str(path))
    return tokenizer


def build(name: str) -> PreTrainedModel:
    """GPT-2 or BERT, at the same width, depth and length, with random weights."""
    if name == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY, n_embd=192, n_layer=5, n_head=6, n_positions=TRAINED_LENGTH,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=END, eos_token_id=END, pad_token_id=PAD,
            )
        )  # fmt: skip
    bert = BertForMaskedLM(
        BertConfig(
            vocab_size=VOCABULARY, hidden_size=192, intermediate_size=768, num_hidden_layers=5, num_attention_heads=6,
            max_position_embeddings=TRAINED_LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            pad_token_id=PAD,
        )
    )  # fmt: skip
    start_from_sinusoids(bert.bert.embeddings.position_embeddings.weight.data)
    return bert


def start_from_sinusoids(table: Tensor, amplitude: float = 0.05) -> None:
    """Fill a position table with sinusoids: from noise, BERT needs thousands of steps to distinguish positions."""
    rows, width = table.shape
    angles = torch.arange(rows)[:, None] * 10_000.0 ** (-torch.arange(0, width, 2) / width)
    table.copy_(amplitude * torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1))


class Run:
    """A training run that can be killed at any time and resumes from the last saved state."""

    def __init__(self, model: PreTrainedModel, arguments: argparse.Namespace) -> None:
        self.model, self.arguments = model, arguments
        self.checkpoint = arguments.out / f"{arguments.model}.safetensors"
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and is_hidden(n)]
        in_matrices = {id(p) for p in matrices}
        others = [p for p in model.parameters() if id(p) not in in_matrices]
        self.optimizers = [
            torch.optim.Muon(matrices, lr=arguments.muon_lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=arguments.lr, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.peaks = [arguments.muon_lr, arguments.lr]
        self.step = 0
        if self.checkpoint.exists():
            self.step = load_state(self.checkpoint, model, self.optimizers)
            print(f"resumed at step {self.step}", flush=True)

    def rate(self) -> float:
        """Learning rate as a share of its peak: linear warm-up, then cosine to 2 %."""
        warm = min(1.0, (self.step + 1) / 100)
        done = self.step / self.arguments.steps
        return warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))

    def train(self, rows: Rows, held_out: tuple[Tensor, Tensor]) -> None:
        loss_of = loss_function(self.model)
        step_loss = loss_of if self.arguments.no_compile else torch.compile(loss_of)
        self.model.train()
        started, first = time.monotonic(), self.step
        for ids, labels in rows.batches(self.arguments.batch, self.step):
            if self.step >= self.arguments.steps:
                break
            for optimizer, peak in zip(self.optimizers, self.peaks, strict=True):
                for group in optimizer.param_groups:
                    group["lr"] = peak * self.rate()
            with torch.autocast("cpu", torch.bfloat16):
                loss = step_loss(ids, labels)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()
            self.step += 1
            if self.step % 50 == 0:
                speed = (self.step - first) / (time.monotonic() - started)
                left = (self.arguments.steps - self.step) / speed / 60
                print(f"step {self.step}  loss {loss.item():.3f}  {speed:.2f} steps/s  {left:.0f} min left", flush=True)
            if self.step % self.arguments.save_every == 0:
                save_state(self.checkpoint, self.model, self.optimizers, self.step)
                print(f"step {self.step}  held out {self.evaluate(loss_of, held_out):.3f}", flush=True)
        save_state(self.checkpoint, self.model, self.optimizers, self.step)
        print(f"held out {self.evaluate(loss_of, held_out):.4f}", flush=True)

    @torch.no_grad()
    def evaluate(self, loss_of, held_out: tuple[Tensor, Tensor]) -> float:
        losses = [loss_of(*pair).item() for pair in zip(*(t.split(16) for t in held_out), strict=True)]
        return sum(losses) / len(losses)


def is_hidden(name: str) -> bool:
    """Whether a matrix maps hidden states to hidden states; AdamW trains embeddings and heads."""
    return not any(part in name for part in ("embed", "wte", "wpe", "lm_head", "decoder", "cls."))


def loss_function(model: PreTrainedModel):
    causal = not isinstance(model, BertForMaskedLM)

    def loss(ids: Tensor, labels: Tensor) -> Tensor:
        logits = model(input_ids=ids).logits.float()
        if causal:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)

    return loss


def export(model: PreTrainedModel, tokenizer: Tokenizer, arguments: argparse.Namespace, commands: list[str]) -> None:
    """Write bfloat16 weights, the tokenizer, and made.json, which records how they were made."""
    model.to(torch.bfloat16).save_pretrained(arguments.export)
    if arguments.model == "bert":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<cls> $A <sep>", pair="<cls> $A <sep> $B <sep>", special_tokens=[("<cls>", CLS), ("<sep>", SEP)]
        )
        special = {"cls_token": "<cls>", "sep_token": "<sep>", "mask_token": "<mask>", "pad_token": "<pad>"}
    else:
        special = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<pad>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)
    fast.save_pretrained(arguments.export)
    made = {
        "commands": commands,
        "python": sys.version.split()[0], "stdlib": sysconfig.get_python_version(), "torch": torch.__version__,
        "seed": arguments.seed, "held_out": HELD_OUT,
    }  # fmt: skip
    (arguments.export / "made.json").write_text(json.dumps(made, indent=2) + "\n")


def commands_so_far(arguments: argparse.Namespace) -> list[str]:
    """The commands that trained this checkpoint, the current one last; repeating a command only resumes it."""
    settings = {"steps": arguments.steps, "drills": arguments.drills, "lr": arguments.lr, "muon-lr": arguments.muon_lr}
    options = " ".join(f"--{name} {value:g}" for name, value in settings.items())
    command = f"python examples/train_starters.py {arguments.model} {options}"
    history = arguments.out / f"{arguments.model}.commands.json"
    commands = json.loads(history.read_text()) if history.exists() else []
    commands += [] if command in commands else [command]
    history.write_text(json.dumps(commands))
    return commands


if __name__ == "__main__":
    main()
