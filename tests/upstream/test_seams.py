"""Upstream code this package depends on: each test inspects it and describes what changed.

Older releases look otherwise here and there; what matters of them is asked by the contract, which runs on them, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import LlamaConfig, Trainer, cache_utils, masking_utils
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.models.bert.modeling_bert import BertSelfAttention
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaModel

from hf_posenc.forward.host_calls import cache_name

READ = Version("5.23.0")
CACHE = str(cache_name(LlamaModel))
pytestmark = pytest.mark.skipif(
    Version(transformers.__version__) < READ, reason=f"seams are written down as of transformers {READ}"
)


@dataclass(frozen=True)
class Seam:
    """A function of somebody else's.

    Attributes:
        name: of it.
        function: it, looked up late: that it is gone is a finding, too.
        parameters: it takes, in their order; more at the end, or by keyword only, do not disturb us.
        where: what of this package rests on it.
        phrases: parts of its source that we rely on, and why.
    """

    name: str
    function: Callable[[], Any]
    parameters: tuple[str, ...]
    where: str
    phrases: tuple[tuple[str, str], ...] = ()

    def difference(self) -> str:
        """What is different, in words; empty where nothing is."""
        try:
            function = self.function()
        except (AttributeError, ImportError) as error:
            return f"{self.name} is gone ({error}). {self.where} rests on it."
        now = tuple(name for name in inspect.signature(function).parameters if name != "self")
        missing = [name for name in self.parameters if name not in now]
        if missing:
            return f"{self.name} takes {now} now and no {', '.join(missing)} any more. Look at {self.where}."
        first = tuple(name for name in now if name in self.parameters)
        if first != self.parameters:
            return f"{self.name} takes its arguments as {first} now, not as {self.parameters}. Look at {self.where}."
        source = inspect.getsource(inspect.unwrap(function)) if self.phrases else ""
        for phrase, why in self.phrases:
            if phrase not in source:
                return f"{self.name} has no {phrase!r} any more: {why}. Look at {self.where}."
        return ""


SEAMS = [
    Seam(
        "LlamaAttention.forward", lambda: LlamaAttention.forward,
        ("hidden_states", "position_embeddings", "attention_mask", CACHE), "patches/llama.py",
        ((f"{CACHE}.update(", "keys go to the cache after they are rotated"),
         ("self.o_proj(", "the output projection comes last")),
    ),
    Seam(
        "LlamaModel.forward", lambda: LlamaModel.forward, ("input_ids", "attention_mask", "position_ids",
        CACHE, "inputs_embeds", "use_cache"), "hf_posenc/forward/stages.py",
        (("position_embeddings = self.rotary_emb(", "one table of angles is made for all layers"),),
    ),
    Seam(
        "GPT2Attention.forward", lambda: GPT2Attention.forward,
        ("hidden_states", CACHE, "attention_mask", "encoder_hidden_states"), "patches/gpt2.py",
        (("self.c_attn(", "query, key and value are one projection"), ("self.resid_dropout(", "dropout comes last")),
    ),
    Seam(
        "BertSelfAttention.forward", lambda: BertSelfAttention.forward,
        ("hidden_states", "attention_mask", CACHE), "hf_posenc/forward/attention.py",
        (("EncoderDecoderCache", "a decoder's cache holds the keys of the other text as well"),),
    ),
    Seam("Cache.get_mask_sizes", lambda: cache_utils.Cache.get_mask_sizes, ("query_length", "layer_idx"),
         "hf_posenc/forward/positions.py"),
    Seam("Cache.get_query_offset", lambda: cache_utils.Cache.get_query_offset, ("layer_idx",),
         "hf_posenc/forward/positions.py"),
    Seam("Cache.get_seq_length", lambda: cache_utils.Cache.get_seq_length, ("layer_idx",),
         "hf_posenc/forward/positions.py"),
    Seam("DynamicLayer.update", lambda: cache_utils.DynamicLayer.update, ("key_states", "value_states"),
         "hf_posenc/cache/eviction.py", (("torch.cat(", "new keys come behind the old ones"),)),
    Seam("StaticLayer.update", lambda: cache_utils.StaticLayer.update, ("key_states", "value_states"),
         "hf_posenc/forward/positions.py", (("cumulative_length", "it counts its tokens in place, in a tensor"),)),
    Seam("create_causal_mask", lambda: masking_utils.create_causal_mask,
         ("config", "inputs_embeds", "attention_mask", CACHE, "position_ids"), "hf_posenc/forward/stages.py"),
    Seam("ALL_ATTENTION_FUNCTIONS.get_interface", lambda: ALL_ATTENTION_FUNCTIONS.get_interface,
         ("attn_implementation", "default"), "hf_posenc/forward/attention.py"),
    Seam(
        "PreTrainedModel.save_pretrained", lambda: PreTrainedModel.save_pretrained,
        ("save_directory", "is_main_process", "state_dict", "push_to_hub"), "hf_posenc/patching/atomic_save.py",
        (("model_to_save.config.save_pretrained(save_directory)", "the configuration writes our guard"),
         ("distributed_checkpoint", "several processes write then, and nothing is staged")),
    ),
    Seam(
        "Trainer._save_checkpoint", lambda: Trainer._save_checkpoint, ("model", "trial"),
        "hf_posenc/training/run_folder.py", (("PREFIX_CHECKPOINT_DIR", "folders are found by that name"),),
    ),
    Seam("Trainer._maybe_log_save_evaluate", lambda: Trainer._maybe_log_save_evaluate, (),
         "hf_posenc/training/run_folder.py",
         (("on_save", "the manifest is written behind the last file of a checkpoint"),)),
]  # fmt: skip


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.name)
def test_transformers(seam: Seam) -> None:
    assert seam.difference() == ""


def test_rope_parameters() -> None:
    """The block in a configuration, and the scalings there are functions for."""
    assert LlamaConfig().rope_parameters == {"rope_theta": 10000.0, "rope_type": "default"}, (
        "A Llama's configuration says its rotation in another way. "
        "Look at patches/llama.py and hf_posenc/checkpoints/plain_checkpoint.py."
    )
    known = {"linear", "dynamic", "yarn", "longrope", "llama3", "proportional"}
    assert set(ROPE_INIT_FUNCTIONS) == known, "Look at hf_posenc/checkpoints/plain_checkpoint.py."


def test_peft() -> None:
    peft = pytest.importorskip("peft")
    from peft.utils.other import ModulesToSaveWrapper

    wrapper = ModulesToSaveWrapper(torch.nn.Linear(2, 2), "default")
    assert isinstance(wrapper.original_module, torch.nn.Module), "hf_posenc/patching/peft_sidecar.py names its parts"
    assert "default" in wrapper.modules_to_save, "hf_posenc/patching/peft_sidecar.py names its parts"
    assert "peft_config.save_pretrained(" in inspect.getsource(peft.PeftModel.save_pretrained), (
        "PEFT saves a configuration in another way; the sidecar is written by its save_pretrained. "
        "Look at hf_posenc/patching/peft_sidecar.py."
    )
    assert "importlib" not in inspect.getsource(peft.PeftConfig), "a configuration imports; look at peft_adapters.py"


def test_lm_eval() -> None:
    pytest.importorskip("lm_eval")
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.models.huggingface import HFLM

    for seam in (
        Seam("ConfigurableTask", lambda: ConfigurableTask.__init__, ("config",), "eval/tasks/base.py"),
        Seam("build_all_requests", lambda: ConfigurableTask.build_all_requests, ("limit", "world_size",
             "cache_requests"), "eval/tasks/base.py"),
        Seam("HFLM._create_model", lambda: HFLM._create_model, ("pretrained", "dtype", "peft"), "eval/lm/causal_lm.py"),
        Seam("HFLM._loglikelihood_tokens", lambda: HFLM._loglikelihood_tokens, ("requests",), "eval/lm/causal_lm.py"),
        Seam("HFLM.set_cache_hook", lambda: HFLM.set_cache_hook, ("cache_hook",), "eval/lm/causal_lm.py"),
    ):  # fmt: skip
        assert seam.difference() == ""


def test_the_private_kernel() -> None:
    """Not an error where it is gone: every call has a public way, which is slower."""
    from hf_posenc.attention.kernels import flash_cpu

    if flash_cpu.forward is None:
        pytest.skip("this torch has no CPU flash operator")
    schema = str(flash_cpu.forward.default._schema)
    assert "bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output" in schema, (
        f"The operator is {schema} now. Look at hf_posenc/attention/kernels/flash_cpu.py."
    )
    assert flash_cpu.available(), "The operator does not take a mask together with causality any more."
