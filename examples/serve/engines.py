"""Run other engines on exported checkpoints, and compare their log-probabilities with those of transformers.

    python examples/serve/engines.py write served                        # where hf_posenc is installed
    python examples/serve/engines.py read served --engine mlx-lm         # where mlx-lm is, which may be elsewhere
    python examples/serve/engines.py read served --engine vllm
    python examples/serve/engines.py read served --engine llama.cpp

The first command writes checkpoints and GGUF files of a random Llama, or of --model, with the log-probabilities that
the patched model gives to 1,000 random tokens. The other commands print the largest difference of a log-probability.
Engines compute in float32.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

CASES: list[tuple[str, dict[str, Any]]] = [
    ("pi", {}), ("ntk", {}), ("llama3", {}), ("yarn", {}), ("yarn", {"attention_factor": 1.3}), ("ntk_parts", {}),
    ("yarn", {"truncate": False}), ("ntk_parts_v1", {}), ("none", {}),
]  # fmt: skip
FACTOR, TOKENS, SEED = 4, 1000, 0


def random_llama(folder: Path) -> str:
    """Write a Llama with two layers; its heads have 64 channels, for which vLLM has a CPU kernel.

    The weights are random, and large enough for scores as unequal as those of a trained model.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, intermediate_size=256, vocab_size=512, max_position_embeddings=256)
    model = LlamaForCausalLM(config)
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(
                weight, std=((3 if "q_proj" in name or "k_proj" in name else 1) / weight.shape[1]) ** 0.5
            )
    torch.nn.init.normal_(model.model.embed_tokens.weight)
    model.save_pretrained(folder)
    return str(folder)


def write(folder: Path, name: str | None) -> None:
    """Export every case, and write the log-probabilities of the patched model."""
    import torch

    from hf_posenc import export, from_pretrained

    name = name or random_llama(folder / "base")
    for number, (scheme, options) in enumerate(CASES):
        model = from_pretrained(name, scheme=scheme, factor=FACTOR, dtype="float32", **options)
        text = torch.randint(2, model.config.vocab_size, (1, TOKENS), generator=torch.Generator().manual_seed(SEED))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            export(model, folder / str(number))
        export(model, folder / f"{number}-gguf", to="gguf")
        with torch.no_grad():
            scores = model(text).logits.log_softmax(-1)[0, :-1].gather(1, text[0, 1:, None])[:, 0]
        case = {"scheme": scheme, "options": options, "text": text[0].tolist(), "scores": scores.tolist()}
        (folder / f"{number}.json").write_text(json.dumps(case), encoding="utf-8")


def mlx_lm(folder: Path, text: list[int]) -> list[float]:
    """Log-probability of each token but the first, computed by mlx-lm."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    logits = load_model(folder)[0](mx.array([text])).astype(mx.float32)[0, :-1]
    scores = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return [scores[row, token].item() for row, token in enumerate(text[1:])]


def vllm(folder: Path, text: list[int]) -> list[float]:
    """Log-probability of each token but the first, computed by vLLM."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        str(folder), skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=TOKENS + 8,
        enable_prefix_caching=False, gpu_memory_utilization=0.1,
    )  # fmt: skip
    asked = SamplingParams(max_tokens=1, prompt_logprobs=1, detokenize=False)
    (answer,) = engine.generate([{"prompt_token_ids": text}], asked, use_tqdm=False)
    return [found[token].logprob for found, token in zip(answer.prompt_logprobs[1:], text[1:], strict=True)]


def llama_cpp(folder: Path, text: list[int]) -> list[float]:
    """Log-probability of each token but the first, computed by llama.cpp from the GGUF file."""
    import llama_cpp as engine
    import numpy as np

    file = str(folder.with_name(f"{folder.name}-gguf") / "model.gguf")
    cache = {"type_k": engine.GGML_TYPE_F32, "type_v": engine.GGML_TYPE_F32, "flash_attn": False}
    model = engine.Llama(file, n_ctx=1024, n_batch=1024, logits_all=True, verbose=False, **cache)
    model.eval(text)
    logits = np.array(model.scores[: len(text) - 1])
    scores = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return [scores[row, token] for row, token in enumerate(text[1:])]


ENGINES: dict[str, Callable[[Path, list[int]], list[float]]] = {"mlx-lm": mlx_lm, "vllm": vllm, "llama.cpp": llama_cpp}


def read(folder: Path, engine: str) -> None:
    """Print the largest difference between an engine and the patched model for each case."""
    print(f"{engine}: largest difference of a log-probability, {TOKENS:,} tokens")
    for file in sorted(folder.glob("*.json")):
        case = json.loads(file.read_text(encoding="utf-8"))
        scores = ENGINES[engine](folder / file.stem, case["text"])
        difference = max(abs(a - b) for a, b in zip(scores, case["scores"], strict=True))
        print(f"  {case['scheme']:14s} {case['options'] or ''!s:28s} {difference:.1e}", flush=True)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["write", "read"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", choices=list(ENGINES))
    parser.add_argument("--model", help="what `write` exports; folder or name of a Llama; default: a random one")
    arguments = parser.parse_args()
    if arguments.what == "write":
        write(arguments.folder, arguments.model)
    elif arguments.engine is None:
        parser.error("read needs --engine")
    else:
        read(arguments.folder, arguments.engine)


if __name__ == "__main__":
    main()
