"""An exported checkpoint through another engine."""

from __future__ import annotations

import pytest
import torch

from hf_posenc import export, load_starter, patch_model
from hf_posenc.eval import TASKS, evaluate


def test_an_exported_checkpoint_gives_equal_scores_in_vllm(tmp_path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed; it needs a GPU and brings its own torch")
    if not torch.cuda.is_available():
        pytest.skip("vLLM runs on a GPU, and there is none")
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    model, tokenizer = load_starter("llama")
    patch_model(model, "yarn", factor=4)
    export(model, tmp_path)
    tokenizer.save_pretrained(tmp_path)
    metadata = {"lengths": [256, 512], "samples": 4, "tokenizer": str(tmp_path)}
    manager = TaskManager(include_path=str(TASKS), include_defaults=False, metadata=metadata)
    theirs = simple_evaluate("vllm", f"pretrained={tmp_path}", tasks=["posenc_ppl"], task_manager=manager)
    ours = evaluate(model, tokenizer, tasks=["posenc_ppl"], lengths=[256, 512], samples=4)
    for row in ours.rows:
        if row.metric == "nll":
            found = theirs["results"]["posenc_ppl"][f"nll_L{row.length},none"]
            assert found == pytest.approx(row.value, abs=2e-2)  # another engine, in bfloat16
