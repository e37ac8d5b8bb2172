"""Train laboratory models of several schemes at once on one GPU: all stages of the recipe, in minutes.

    python examples/train_laboratory_gpu.py rope none alibi t5 fox fire sinusoidal learned irope --out runs/laboratory

Rows, starting weights and learning rates are those of `train_laboratory`; every model reads every row. Models of this
size are limited by kernel launches, so one CUDA graph makes a step of all models: each computes its gradients on its
own stream, and matrices of equal shape are orthogonalised together. The models are exported after every stage, finally
to OUT/stage-5/SCHEME. If the script is run again, it resumes from the last saved state.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import time
from multiprocessing.pool import Pool
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from laboratory_muon import Muon
from laboratory_rows import LENGTH, MIXES, Rows
from laboratory_start import start_from_induction
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from train_laboratory import (
    MADE,
    build,
    export,
    matrices_and_others,
    share_of_peak,
    shared_tokenizer,
    weighted_mean,
)
from training_state import StageState, write_tensors
from transformers import DynamicCache, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from hf_posenc import from_pretrained
from hf_posenc.eval.texts.measured_text import TRAINING, module_text

STAGES = ((1, 6000, 0), (2, 3500, 1), (3, 3500, 3), (4, 7000, 4), (5, 6000, 5))
"""Mix of rows, number of steps, and seed of each stage."""
PEAK_RATE = 1e-3
SAVE_EVERY = 2000
DEVICE = "cuda"
Batch = tuple[np.ndarray, np.ndarray]


def main() -> None:
    arguments = parse()
    if not torch.cuda.is_available():
        raise SystemExit("This needs a CUDA GPU. Without one, train_laboratory.py trains one model at a time.")
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    state = StageState(out / "state.safetensors", made_by(arguments)["command"])
    tokenizer = shared_tokenizer(training_texts(), out / "tokenizer.json")
    done = finished(out, arguments.schemes)
    models = {scheme: begun(scheme, out, done) for scheme in arguments.schemes}
    with multiprocessing.get_context("spawn").Pool(
        arguments.workers, initializer=prepare_rows, initargs=(str(out / "tokenizer.json"),)
    ) as pool:
        training = JointTraining(models, arguments.batch)
        for number in range(done, len(STAGES)):
            training.train(pool, number, state)
            for scheme, model in models.items():
                export(copy.deepcopy(model).cpu(), tokenizer, folder_of(out, number + 1, scheme), made_by(arguments))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schemes", metavar="SCHEME[:OPTION=VALUE,…]", nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="folder of the models")
    parser.add_argument("--batch", type=int, default=8, help=f"rows of {LENGTH} tokens per step")
    workers = max(1, (os.cpu_count() or 1) // 2)
    parser.add_argument("--workers", type=int, default=workers, help="processes that draw rows")
    return parser.parse_args()


def folder_of(out: Path, stage: int, scheme: str) -> Path:
    return out / f"stage-{stage}" / scheme.replace(":", "_")


def finished(out: Path, schemes: list[str]) -> int:
    """Number of the last stage that has been exported for all models."""
    stages = range(len(STAGES), 0, -1)
    return next((n for n in stages if all((folder_of(out, n, s) / MADE).exists() for s in schemes)), 0)


def made_by(arguments: argparse.Namespace) -> dict[str, str]:
    words = [*arguments.schemes, "--batch", str(arguments.batch)]
    return {"command": f"python examples/train_laboratory_gpu.py {' '.join(words)}"}


def training_texts() -> list[str]:
    return [text for name in TRAINING if (text := module_text(name))]


def begun(scheme: str, out: Path, done: int) -> LlamaForCausalLM:
    """A model after ``done`` stages, or with its starting weights."""
    torch.manual_seed(0)
    model = build(scheme)
    model.set_attn_implementation("sdpa")
    if done:
        model.load_state_dict(from_pretrained(folder_of(out, done, scheme)).state_dict())
    else:
        start(model, scheme, Path(f"{folder_of(out, 0, scheme)}.safetensors"))
    return model


def start(model: LlamaForCausalLM, scheme: str, file: Path) -> None:
    """Give a model its starting weights; they are fitted in a minute or two if the file does not exist."""
    if not file.exists():
        before, matched = start_from_induction(model, 0)
        print(
            f"{scheme} missed: {before:.2f} of the tokens before, {matched:.2f} of what followed the same", flush=True
        )
        file.parent.mkdir(exist_ok=True)
        write_tensors(file, dict(model.named_parameters()), {})
    for name, weight in load_file(file).items():
        model.get_parameter(name).data.copy_(weight)


# Rows, drawn by processes of their own

ROWS: list[Rows] = []


def prepare_rows(tokenizer: str) -> None:
    torch.set_num_threads(1)
    ROWS.append(Rows(Tokenizer.from_file(tokenizer), training_texts(), MIXES[1]))


class Request(NamedTuple):
    """Everything that the rows of a step depend on."""

    mix: int
    seed: int
    short_first: bool
    step: int
    steps: int
    size: int


def batch_of(request: Request) -> Batch:
    """Tokens and weights ``[row, token]`` of a step."""
    (rows,) = ROWS
    rows.mix = MIXES[request.mix]
    drawn = next(rows.batches(request.size, request.step, request.steps, request.seed, short_first=request.short_first))
    ids, weights = zip(*drawn, strict=True)
    return np.array(ids, np.int64), np.array(weights, np.float32)


class JointTraining:
    """Trains models of equal shape on the same rows."""

    def __init__(self, models: dict[str, LlamaForCausalLM], batch: int) -> None:
        self.models = {scheme: with_fused_norms(model).to(DEVICE).train() for scheme, model in models.items()}
        self.ids = torch.zeros(batch, LENGTH, dtype=torch.long, device=DEVICE)
        self.weights = torch.ones(batch, LENGTH, device=DEVICE)
        self.rate = torch.zeros((), device=DEVICE)
        self.losses = torch.zeros(len(models), device=DEVICE)
        self.streams = [torch.cuda.Stream() for _ in models]
        parameters = [matrices_and_others(model) for model in models.values()]
        others = [parameter for _, of_model in parameters for parameter in of_model]
        self.muon = Muon([matrix for of_model, _ in parameters for matrix in of_model], self.rate)
        self.adam = torch.optim.AdamW(
            others, lr=self.rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True, capturable=True
        )
        self.graph = self.captured()

    def gradients(self, number: int, model: LlamaForCausalLM) -> None:
        """Compute the clipped gradients of one model on the batch."""
        with torch.autocast(DEVICE, torch.bfloat16):
            # With a cache, transformers does not look for packed texts, for which it would wait for the GPU.
            logits = model(self.ids, None, None, DynamicCache()).logits
        loss = weighted_mean(logits, self.ids, self.weights)
        self.losses[number] = loss.detach()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    def step(self) -> None:
        """One step of all models, each on its stream."""
        main = torch.cuda.current_stream()
        for number, (stream, model) in enumerate(zip(self.streams, self.models.values(), strict=True)):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                self.gradients(number, model)
        for stream in self.streams:
            main.wait_stream(stream)
        self.muon.step()
        self.adam.step()

    def captured(self) -> torch.cuda.CUDAGraph:
        """Capture the graph of a step, at learning rate zero, after three warm-up steps that compile kernels."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
                self.forget_gradients()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=side):
            self.step()
        return graph

    def forget_gradients(self) -> None:
        for model in self.models.values():
            model.zero_grad(set_to_none=True)

    def optimizer_state(self) -> list[Tensor]:
        """The tensors in which the optimizers store earlier steps."""
        return [*self.muon.momenta, *(t for state in self.adam.state.values() for t in state.values())]

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that a step changes: parameters and the state of the optimizers."""
        parameters = {f"{s}.{name}": p for s, model in self.models.items() for name, p in model.named_parameters()}
        return parameters | {f"optimizers.{i}": tensor for i, tensor in enumerate(self.optimizer_state())}

    def train(self, pool: Pool, number: int, state: StageState) -> None:
        """Train one stage: the rate rises for 100 steps, and falls to zero over the last 40 %."""
        for tensor in self.optimizer_state():
            tensor.zero_()
        first = state.restore(self.tensors(), number)
        (mix, steps, seed), begun = STAGES[number], time.monotonic()
        requests = [Request(mix, seed, number == 0, step, steps, len(self.ids)) for step in range(first, steps)]
        for step, (ids, weights) in enumerate(pool.imap(batch_of, requests, chunksize=4), start=first):
            self.ids.copy_(torch.from_numpy(ids))
            self.weights.copy_(torch.from_numpy(weights))
            self.rate.fill_(PEAK_RATE * share_of_peak(step, steps))
            self.graph.replay()
            if (step + 1) % 500 == 0 or step + 1 == steps:
                losses = "  ".join(f"{s} {v:.3f}" for s, v in zip(self.models, self.losses.tolist(), strict=True))
                pace = (time.monotonic() - begun) / (step + 1 - first) * 1000
                print(f"stage {number + 1}  step {step + 1} of {steps}  {pace:.2f} ms a step  {losses}", flush=True)
            if (step + 1) % SAVE_EVERY == 0:
                state.save(self.tensors(), number, step + 1)


def with_fused_norms(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Replace transformers' RMSNorm, a dozen kernels with its gradient, by torch's fused one, which has three."""
    for module in list(model.modules()):
        for name, norm in module.named_children():
            if isinstance(norm, LlamaRMSNorm):
                fused = nn.RMSNorm(norm.weight.shape, norm.variance_epsilon)
                fused.weight = norm.weight
                setattr(module, name, fused)
    return model


if __name__ == "__main__":
    main()
