"""Train the laboratory models: small decoders of equal size that differ only in their positional scheme.

    python examples/train_laboratory.py rope --out runs/laboratory     # then none, alibi, t5, fox; resumes if run again
    python examples/train_laboratory.py rope --out runs/laboratory --export runs/laboratory/rope
    python examples/train_laboratory.py rope --start runs/laboratory/rope --mix 2 --seed 1 --out runs/longer --export …

All models start from the same weights and read the same rows in the same order (`laboratory_rows`), so later
differences are due to the scheme. The layers' matrices are trained with Muon, all other parameters with AdamW.
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
from laboratory_rows import (
    ANSWER,
    END,
    LENGTH,
    MIXES,
    PAD,
    TASKS,
    VOCABULARY,
    Row,
    Rows,
    trained_tokenizer,
)
from laboratory_start import start_from_induction
from tokenizers import Tokenizer
from torch import Tensor, nn
from training_state import check_command, load_state, save_state
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hf_posenc import from_pretrained, patch_model
from hf_posenc.eval.texts.measured_text import HELD_OUT, TRAINING, module_text
from hf_posenc.schemes.entry import entries_of

MADE, BATCH = "made.json", 8
HALF_PRECISION = bool(torch.cpu.get_capabilities().get("avx512_bf16"))
"""Whether to multiply in bfloat16, with weights in float32: two thirds of the time on processors with AVX512-BF16."""


def main() -> None:
    arguments = parse()
    torch.manual_seed(arguments.seed)
    arguments.out.mkdir(parents=True, exist_ok=True)
    texts = [text for name in TRAINING if (text := module_text(name))]
    tokenizer = shared_tokenizer(texts, (arguments.start or arguments.out) / "tokenizer.json")
    run = Run(build(arguments.scheme, arguments.length), arguments)
    run.train(Rows(tokenizer, texts, MIXES[arguments.mix], arguments.length))
    if arguments.export:
        export(run.model, tokenizer, arguments.export, made_by(arguments))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scheme", metavar="SCHEME[:OPTION=VALUE,…]")
    parser.add_argument("--out", type=Path, required=True, help="folder of the training states")
    parser.add_argument("--export", type=Path, help="folder to write the finished model and tokenizer to")
    parser.add_argument("--start", type=Path, help="folder of an exported model to train further")
    parser.add_argument("--mix", type=int, choices=MIXES, default=1, help="number of the mix of rows")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens of a row, and of the model's context")
    parser.add_argument("--batch", type=int, default=BATCH, help="rows per step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=500)
    return parser.parse_args()


def shared_tokenizer(texts: list[str], path: Path) -> Tokenizer:
    """Load the tokenizer that all models of a folder share; train it if there is none yet."""
    if not path.exists():
        trained_tokenizer(texts).save(str(path))
    return Tokenizer.from_file(str(path))


def build(scheme: str, length: int = LENGTH) -> LlamaForCausalLM:
    """A Llama of four layers and width 192 with random weights, for ``length`` tokens.

    RoPE runs with eager attention: in half precision, the backward pass of torch's CPU attention kernel is slower.
    """
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=192, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=length, tie_word_embeddings=True, bos_token_id=END,
        eos_token_id=END, pad_token_id=PAD, attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    (entry,) = entries_of([scheme])
    if entry.scheme != "rope":
        model.set_attn_implementation("sdpa")  # the schemes have kernels of their own
        patch_model(model, scheme=entry.scheme, **entry.options)
    return model


def matrices_and_others(model: LlamaForCausalLM) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters that Muon trains, and those that AdamW does."""
    matrices = [m.weight for m in model.model.layers.modules() if isinstance(m, nn.Linear)]
    known = {id(p) for p in matrices}
    return matrices, [p for p in model.parameters() if id(p) not in known]


def share_of_peak(step: int, steps: int) -> float:
    """Learning rate over its peak: linear warm-up, flat, and linear to zero over the last 40 %."""
    return min(1.0, (step + 1) / 100, (1 - step / steps) / 0.4)


def weighted_mean(logits: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean loss over the tokens of a batch, ``ids`` and ``weights [row, token]``."""
    predicted, targets = logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten()
    losses = nn.functional.cross_entropy(predicted, targets, reduction="none")
    return (losses * weights[:, 1:].flatten()).sum() / weights[:, 1:].sum()


class Run:
    """A training run that can be killed at any time and resumes from the last saved state."""

    def __init__(self, model: LlamaForCausalLM, arguments: argparse.Namespace) -> None:
        self.model, self.arguments, self.step = model, arguments, 0
        self.command = str(made_by(arguments)["command"])
        self.file = arguments.out / f"{arguments.scheme.replace(':', '_')}.safetensors"
        matrices, others = matrices_and_others(model)
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=arguments.lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=arguments.lr, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        check_command(self.file, self.command)
        if self.file.exists():
            self.step = load_state(self.file, model, self.optimizers)
            print(f"resumed at step {self.step}", flush=True)
        elif arguments.start:
            trained = from_pretrained(arguments.start)  # stored in bfloat16, and trained in float32
            model.load_state_dict(trained.state_dict())
        else:
            before, matched = start_from_induction(model, arguments.seed)
            print(f"missed: {before:.2f} of the tokens before, {matched:.2f} of what followed the same", flush=True)

    def train(self, rows: Rows) -> None:
        self.model.train()
        options = self.arguments
        short_first = options.start is None
        for batch in rows.batches(options.batch, self.step, options.steps, options.seed, short_first=short_first):
            for optimizer in self.optimizers:
                optimizer.param_groups[0]["lr"] = options.lr * share_of_peak(self.step, options.steps)
            loss = self.loss(batch)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            for optimizer in self.optimizers:
                optimizer.step()
            self.model.zero_grad()
            self.step += 1
            if self.step % 50 == 0:
                print(f"step {self.step}  loss {loss.item():.3f}  {time.process_time() / 60:.1f} min", flush=True)
            if self.step % options.save_every == 0:
                save_state(self.file, self.model, self.optimizers, self.step, self.command)
                print(f"step {self.step}  {self.abilities(rows)}", flush=True)
        save_state(self.file, self.model, self.optimizers, self.step, self.command)

    def loss(self, batch: list[Row]) -> Tensor:
        """Weighted mean over the tokens of a batch."""
        ids, weights = (torch.tensor(part) for part in zip(*batch, strict=True))
        with torch.autocast("cpu", torch.bfloat16, enabled=HALF_PRECISION):
            logits = self.model(input_ids=ids, use_cache=False).logits
        return weighted_mean(logits, ids, weights)

    @torch.no_grad()
    def abilities(self, rows: Rows, count: int = 24) -> str:
        """Share of row-long prompts of each task whose answers are all right, and the loss of held-out text."""
        self.model.eval()
        shares = []
        for draw in dict.fromkeys(TASKS):
            rng = random.Random(f"held-out-{draw.__name__}")
            drawn = [rows.answered(draw(rng), rows.length) for _ in range(count)]
            shares.append(f"{draw.__name__} {self.share_right([row for row in drawn if row[0]]):.2f}")
        rng = random.Random("held-out-copy")
        shares.append(f"copy {self.share_right([rows.copy(rng) for _ in range(count)], tokens=True):.2f}")
        held_out = [t for name in HELD_OUT for t in rows.tokenizer.encode(module_text(name)).ids]
        text = torch.tensor([held_out[i * 5000 : i * 5000 + rows.length] for i in range(count)])
        loss = self.model(input_ids=text, labels=text).loss.item()
        self.model.train()
        return f"text {loss:.3f}  {'  '.join(shares)}"

    def share_right(self, drawn: list[Row], *, tokens: bool = False) -> float:
        right = []
        for ids, weights in drawn:
            guessed = self.model(input_ids=torch.tensor([ids])).logits[0, :-1].argmax(-1)
            asked = torch.tensor(weights[1:]) >= (1.0 if tokens else ANSWER)
            hits = (guessed == torch.tensor(ids[1:]))[asked].float()
            right.append(hits.mean().item() if tokens else float(hits.all()))
        return sum(right) / max(1, len(right))


def export(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path, made: dict[str, object]) -> None:
    """Write bfloat16 weights, the tokenizer, and made.json, which records how they were made."""
    model.to(torch.bfloat16).save_pretrained(folder)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, bos_token="<|endoftext|>",
        eos_token="<|endoftext|>", pad_token="<pad>",
    )  # fmt: skip
    fast.save_pretrained(folder)
    versions = {
        "python": sys.version.split()[0], "stdlib": sysconfig.get_python_version(), "torch": torch.__version__,
        "held_out": HELD_OUT,
    }  # fmt: skip
    (folder / MADE).write_text(json.dumps(made | versions, indent=2) + "\n")


def made_by(arguments: argparse.Namespace) -> dict[str, object]:
    """The command of a training, and the record of the model that it started from."""
    start = f" --start {arguments.start.name}" if arguments.start else ""
    options = f"--mix {arguments.mix} --steps {arguments.steps} --lr {arguments.lr:g} --seed {arguments.seed}"
    options += f" --length {arguments.length}" * (arguments.length != LENGTH)
    options += f" --batch {arguments.batch}" * (arguments.batch != BATCH)
    made: dict[str, object] = {"command": f"python examples/train_laboratory.py {arguments.scheme}{start} {options}"}
    if arguments.start:
        made["start"] = json.loads((arguments.start / MADE).read_text())
    return made


if __name__ == "__main__":
    main()
