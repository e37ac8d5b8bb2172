"""Memory of a scored request, in a process each: what lm-eval's ``hf`` needs for whole texts, and what we need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STATUS = Path("/proc/self/status")
pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="only Linux reports the peak memory of one process")

LENGTH, VOCABULARY = 2048, 32000
LOGITS = 4 * LENGTH * VOCABULARY / 2**20  # 250 MiB

PROGRAM = """
import sys
import torch
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from hf_posenc.eval.lm.causal_lm import PosEncLM


def peak():  # MiB; getrusage would tell that of the process which started this one, were it higher
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024


kind, length, scored = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
torch.set_num_threads(1)
config = LlamaConfig(
    vocab_size=32000, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, max_position_embeddings=length, bos_token_id=0, eos_token_id=0,
)
words = Tokenizer(models.WordLevel({"<end>": 0, "a": 1}, unk_token="<end>"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<end>", eos_token="<end>")
lm = (HFLM if kind == "stock" else PosEncLM)(LlamaForCausalLM(config), tokenizer=tokenizer)
ids = torch.randint(2, 32000, (length + 1,)).tolist()
lm._loglikelihood_tokens([(("", ""), ids[:64], ids[64:72])], disable_tqdm=True)  # buffers of the first call
before = peak()
score = lm._loglikelihood_tokens([(("", ""), ids[:-scored], ids[-scored:])], disable_tqdm=True)[0][0]
print(peak() - before, score)
"""


def growth(kind: str, scored: int) -> tuple[float, float]:
    """MiB by which the peak grows while a text is scored, and the score."""
    words = [sys.executable, "-c", PROGRAM, kind, str(LENGTH), str(scored)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    size, score = done.stdout.split()[-2:]
    return float(size), float(score)


@pytest.mark.slow
@pytest.mark.parametrize("scored", [8, LENGTH], ids=["the last tokens", "all tokens"])
def test_logits_of_whole_texts_are_never_held(scored: int) -> None:
    stock, expected = growth("stock", scored)
    ours, score = growth("ours", scored)
    assert score == pytest.approx(expected, rel=1e-6)
    assert stock > 1.8 * LOGITS  # control: the logits, and their logarithm once more
    assert ours < stock / 5
