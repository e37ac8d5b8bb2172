"""Train the bundled GPT-2 and BERT, from text that every Python installation has.

    python examples/train_starters.py gpt2 --out runs/starters         # then bert; resumes when run again
    python examples/train_starters.py gpt2 --out runs/starters --export hf_posenc/starters/gpt2

The text is the standard library's own source and `pydoc_data`; the modules in `HELD_OUT` are never trained on. A fifth
of the rows are drills (a passkey to find again, a passage to copy), so that a 2.4 M parameter model learns to retrieve
within its 256 tokens and there is something to lose beyond them; BERT goes on in `train_bert_passkeys`. A run that is
continued with more ``--steps`` keeps its state and takes the new schedule. Matrices are trained with Muon, the rest
with AdamW.

One long file on purpose: it is the complete record of how the shipped weights came about.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import torch
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
from hf_posenc.eval.texts.haystack import FILLER
from hf_posenc.eval.texts.stdlib_source import HELD_OUT, TRAINING, module_text

TRAINED_LENGTH = 256
VOCABULARY = 2048
SPECIAL = ("<|endoftext|>", "<pad>", "<mask>", "<cls>", "<sep>")
END, PAD, MASK, CLS, SEP = range(len(SPECIAL))
IGNORED = -100


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
    parser.add_argument("--batch", type=int, default=16, help="rows of 256 tokens a step")
    parser.add_argument("--drills", type=float, default=0.12, help="share of rows that hold a passkey")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--muon-lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=250)
    parser.add_argument("--no-compile", action="store_true")
    return parser.parse_args()


def trained_tokenizer(texts: list[str], path: Path) -> Tokenizer:
    """Byte-level BPE; digits stand alone, so that a passkey is five tokens at every place."""
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
    drills = [passkey.compose(passkey.draw_key(rng), 10, 10) for _ in range(200)]
    tokenizer.train_from_iterator([*texts, *drills], trainer)
    tokenizer.save(str(path))
    return tokenizer


def build(name: str) -> PreTrainedModel:
    """Both architectures at the same width, depth and length."""
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
    """Overwrite a table before training: from noise, BERT takes thousands of steps to tell positions apart."""
    rows, width = table.shape
    angles = torch.arange(rows)[:, None] * 10_000.0 ** (-torch.arange(0, width, 2) / width)
    table.copy_(amplitude * torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1))


class Rows:
    """Batches of 256-token rows: real text, passkeys in ``drill_share`` of them, passages to copy in 8 %."""

    def __init__(self, tokenizer: Tokenizer, texts: list[str], *, masked: bool, drill_share: float, seed: int) -> None:
        self.masked = masked
        self.drill_share = drill_share
        self.seed = seed
        self.tokenizer = tokenizer
        ids: list[int] = []
        for encoded in tokenizer.encode_batch(texts):
            ids += [END, *encoded.ids]
        self.stream = torch.tensor(ids)
        print(f"{len(ids) / 1e6:.2f} M training tokens", flush=True)
        rng = random.Random(seed)
        self.drills = [torch.tensor(self.retrieval(rng)) for _ in range(6000)]

    def retrieval(self, rng: random.Random) -> list[int]:
        """A passkey prompt of random length and depth, with its answer; half of them in real text instead of filler."""
        room = rng.randint(100, TRAINED_LENGTH - 2)
        key = passkey.draw_key(rng)
        filler = FILLER if rng.random() < 0.7 else self.lines(rng)
        prompt = passkey.passkey(room, rng.random(), key, lambda text: len(self.tokenizer.encode(text).ids), filler)
        return self.tokenizer.encode(prompt + passkey.answer(key)).ids

    def lines(self, rng: random.Random) -> tuple[str, ...]:
        start = rng.randrange(len(self.stream) - 400)
        text = self.tokenizer.decode(self.stream[start : start + 400].tolist())
        return tuple(line.strip() or "#" for line in text.splitlines()) or FILLER

    def batches(self, size: int, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Endless ``(input_ids, labels)``, each ``[size, 256]``; batch ``n`` is the same in every run."""
        for number in range(first, sys.maxsize):
            rng = random.Random(f"{self.seed}-{number}")
            rows = [self.row(rng) for _ in range(size)]
            if self.masked:
                masked = [mask_row(row, rng) for row in rows]
                yield torch.stack([m[0] for m in masked]), torch.stack([m[1] for m in masked])
            else:
                batch = torch.stack(rows)
                yield batch, batch

    def row(self, rng: random.Random) -> Tensor:
        kind = rng.random()
        room = TRAINED_LENGTH - 2 if self.masked else TRAINED_LENGTH
        if kind < self.drill_share:
            row = self.placed(rng.choice(self.drills)[-room:], room, rng)
        elif kind < self.drill_share + 0.08:
            passage = self.window(rng, rng.randint(16, room // 2 - 2))
            between = self.window(rng, room - 2 * len(passage))
            row = torch.cat([passage, between, passage])
        else:
            row = self.window(rng, room)
        if not self.masked:
            return row
        return torch.cat([torch.tensor([CLS]), row, torch.tensor([SEP])])

    def placed(self, drill: Tensor, room: int, rng: random.Random) -> Tensor:
        """A drill between two pieces of text; at the end of the row where digits are masked, as `mask_row` expects."""
        left = room - len(drill)
        before = left if self.masked else rng.randint(0, left)
        end = torch.tensor([END])
        return torch.cat(
            [
                self.window(rng, before - 1),
                end[:before],
                drill,
                end[: left - before],
                self.window(rng, left - before - 1),
            ]
        )

    def window(self, rng: random.Random, length: int) -> Tensor:
        if length <= 0:
            return torch.empty(0, dtype=torch.long)
        start = rng.randrange(len(self.stream) - length)
        return self.stream[start : start + length]


def mask_row(row: Tensor, rng: random.Random) -> tuple[Tensor, Tensor]:
    """Hide 20 % of the tokens; or, in every second row, 3 % and the last five, which in a drill are its answer."""
    labels = torch.full_like(row, IGNORED)
    answer = rng.random() < 0.5
    hidden = torch.tensor([rng.random() < (0.03 if answer else 0.2) for _ in range(len(row))])
    if answer:
        hidden[-6:-1] = True
    hidden &= (row != CLS) & (row != SEP)
    labels[hidden] = row[hidden]
    masked = row.clone()
    for place in hidden.nonzero().flatten().tolist():
        chance = rng.random()
        masked[place] = MASK if chance < 0.9 else rng.randrange(len(SPECIAL), VOCABULARY)
    return masked, labels


def evaluation_rows(tokenizer: Tokenizer, *, masked: bool) -> tuple[Tensor, Tensor]:
    """64 rows of held-out text, the same in every run."""
    rng = random.Random(1)
    stream = torch.tensor([i for name in HELD_OUT for i in tokenizer.encode(module_text(name)).ids])
    size = TRAINED_LENGTH - 2 if masked else TRAINED_LENGTH
    starts = [rng.randrange(len(stream) - size) for _ in range(64)]
    rows = torch.stack([stream[s : s + size] for s in starts])
    if not masked:
        return rows, rows
    edges = torch.tensor([[CLS], [SEP]])
    pairs = [mask_row(torch.cat([edges[0], row, edges[1]]), rng) for row in rows]
    return torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs])


class Run:
    """A training that can be killed at any time, and goes on where it was last saved."""

    def __init__(self, model: PreTrainedModel, arguments: argparse.Namespace) -> None:
        self.model, self.arguments = model, arguments
        self.checkpoint = arguments.out / f"{arguments.model}.safetensors"
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and is_hidden(n)]
        chosen = {id(p) for p in matrices}
        rest = [p for p in model.parameters() if id(p) not in chosen]
        self.optimizers = [
            torch.optim.Muon(matrices, lr=arguments.muon_lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=arguments.lr, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.peaks = [arguments.muon_lr, arguments.lr]
        self.step = 0
        if self.checkpoint.exists():
            self.step = load_state(self.checkpoint, model, self.optimizers)
            print(f"resumed at step {self.step}", flush=True)

    def rate(self) -> float:
        """Linear warm-up, then cosine to 2 %, as a share of the peak."""
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
    """Whether a matrix maps hidden to hidden; tables and heads are AdamW's."""
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
    """Write bf16 weights, tokenizer and a note of how they were made."""
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
    """The commands that trained this checkpoint, this one last; the same one again only resumed."""
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
