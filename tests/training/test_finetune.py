"""Fine-tuning: which parameters are trained, and that a killed run ends like an undisturbed one."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    TrainerCallback,
)

from hf_posenc import describe, patch_model, scheme_of
from hf_posenc.errors import CheckpointMismatch

pytest.importorskip("peft", reason="fine-tuning needs the extra `train`")

from hf_posenc.checkpoints.peft import load_peft_adapter
from hf_posenc.training import METHODS, Training, finetune
from hf_posenc.training.methods import lora
from hf_posenc.training.trained_layers import RunStart

TRAINED, FACTOR = 16, 4
TARGET = FACTOR * TRAINED
WORDS = ["<pad>", "<end>", "<mask>", "<unk>", *(f"w{i}" for i in range(28))]
TEXTS = [
    " ".join(f"w{(i * i + j) % 28}" for i in range(600)) for j in range(4)
]  # squares repeat: there is much to learn


def llama(**more) -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=TRAINED, pad_token_id=0, bos_token_id=1,
            eos_token_id=1, **more,
        )
    )  # fmt: skip


def gpt2() -> PreTrainedModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(WORDS), n_embd=32, n_layer=2, n_head=4, n_positions=TRAINED, bos_token_id=1, eos_token_id=1,
            embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
        )
    )  # fmt: skip


def bert(**more) -> PreTrainedModel:
    torch.manual_seed(0)
    return BertForMaskedLM(
        BertConfig(
            vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
            max_position_embeddings=TRAINED, **more,
        )
    )  # fmt: skip


HOSTS = {"llama": llama, "gpt2": gpt2, "bert": bert}


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>", mask_token="<mask>", unk_token="<unk>"
    )


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


RUN = ("held_out", "out", "resume", "progress", "on_read", "callbacks", "arguments")


def run(model, tokenizer, texts=TEXTS, **more):
    """`finetune` with settings and the other keywords mixed."""
    apart = {name: more.pop(name) for name in RUN if name in more}
    rank = {} if more.get("method") in ("full",) else {"rank": 2}
    training = Training(**{"length": TARGET, "steps": 6, "learning_rate": 1e-2, **rank, **more})
    return finetune(model, tokenizer, texts, training, **apart)


def tune(model, tokenizer, **more):
    return run(model, tokenizer, **more).model


@pytest.mark.parametrize(("kind", "scheme"), [("llama", "yarn"), ("llama", "t5"), ("gpt2", "t5"), ("bert", "t5")])
def test_the_loss_falls_and_positions_learn(kind, scheme, tokenizer) -> None:
    model = patch_model(HOSTS[kind](), scheme, factor=FACTOR)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    reported: list[tuple[float, float]] = []
    tuned = tune(model, tokenizer, steps=20, batch=8, progress=lambda share, loss: reported.append((share, loss)))
    assert [share for share, _ in reported] == pytest.approx([(i + 1) / 20 for i in range(20)])
    losses = [loss for _, loss in reported]
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.05  # batches differ by 0.02
    assert not tuned.training
    if scheme == "t5":
        name = next(n for n in before if n.endswith("posenc.table.weight"))
        assert not torch.equal(scheme_of(tuned).table.weight, before[name])


@pytest.mark.parametrize("kind", HOSTS)
def test_what_is_trained(kind) -> None:
    """Every linear layer inside the base by LoRA, norms as a whole, a tied embedding only where the tie can be kept."""
    model = patch_model(HOSTS[kind](), "t5", factor=FACTOR)
    config = lora(model, rank=2)
    linear = {
        "llama": {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
        "gpt2": {"c_attn", "c_proj", "c_fc"},
        "bert": {"query", "key", "value", "dense"},
    }
    whole = {
        "llama": {"input_layernorm", "post_attention_layernorm", "norm", "embed_tokens", "posenc"},
        "gpt2": {"ln_1", "ln_2", "ln_f", "posenc"},
        "bert": {"LayerNorm", "posenc"},
    }
    assert set(config.target_modules) == linear[kind]
    assert set(config.modules_to_save) == whole[kind]


def test_a_scheme_with_a_module_of_the_models_names_is_loaded_again(tokenizer, tmp_path) -> None:
    """Llama ends with a ``norm``, and so does DeBERTa's table."""
    tuned = run(patch_model(llama(), "deberta", factor=FACTOR), tokenizer, steps=2, out=tmp_path).model
    again = load_peft_adapter(llama(), tmp_path, patch="apply")
    ids = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"][:, :TARGET]
    with torch.no_grad():
        found, expected = again(ids).logits, tuned(ids).logits
        untrained = patch_model(llama(), "deberta", factor=FACTOR)(ids).logits
    assert torch.allclose(found, expected, atol=1e-5)
    assert (untrained - expected).abs().max() > 1e-3, "control: trained"


def test_tied_embeddings_stay_tied(tokenizer) -> None:
    tuned = tune(patch_model(llama(tie_word_embeddings=True), "yarn", factor=FACTOR), tokenizer, steps=2)
    merged = tuned.merge_and_unload()
    assert torch.equal(merged.lm_head.weight, merged.model.embed_tokens.weight)


def test_gradient_checkpointing_gives_the_same_weights(tokenizer) -> None:
    plain, saving = (
        tune(patch_model(llama(), "t5", factor=FACTOR), tokenizer, gradient_checkpointing=choice)
        for choice in (False, True)
    )
    assert_close(plain, saving)
    on = [getattr(module, "gradient_checkpointing", False) for module in saving.modules()]
    assert any(on), "control: it was on"


class Killed(Exception):
    """What stops a run between two steps."""


@pytest.fixture
def killed(tokenizer, tmp_path) -> Path:
    """The folder of a run of 6 steps that died in its fifth, with checkpoints at 2 and 4."""

    def die(share: float, loss: float) -> None:
        if share > 0.8:
            raise Killed

    with pytest.raises(Killed):
        tune(patch_model(llama(), "t5", factor=FACTOR), tokenizer, out=tmp_path, save_every=2, progress=die)
    assert sorted(p.name for p in tmp_path.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
    return tmp_path


def test_a_resumed_run_ends_where_an_undisturbed_one_does(killed, tokenizer) -> None:
    shares: list[float] = []
    resumed = tune(
        patch_model(llama(), "t5", factor=FACTOR), tokenizer, out=killed, save_every=2, resume=True,
        progress=lambda share, _: shares.append(share),
    )  # fmt: skip
    assert shares == pytest.approx([5 / 6, 1.0])
    undisturbed = tune(patch_model(llama(), "t5", factor=FACTOR), tokenizer)
    assert_close(resumed, undisturbed)
    loaded = load_peft_adapter(llama(), killed, patch="apply")
    assert describe(loaded).scheme == "t5"
    ids = torch.arange(4, 30)[None]
    assert torch.equal(loaded(ids).logits, resumed(ids).logits)


@pytest.mark.parametrize("setting", ["attention_groups", "length_stages"])
@pytest.mark.parametrize("value", [1, 4])
def test_a_run_with_a_setting_that_is_gone_resumes_where_it_had_no_effect(setting, value, killed, tokenizer) -> None:
    run = killed / "run.json"
    run.write_text(json.dumps(json.loads(run.read_text()) | {setting: value}))
    again = partial(tune, patch_model(llama(), "t5", factor=FACTOR), tokenizer, out=killed, save_every=2, resume=True)
    if value == 1:
        again()
    else:
        with pytest.raises(CheckpointMismatch, match=f"{setting}: 4 then"):
            again()


def test_a_run_whose_settings_are_lost_is_not_resumed(killed, tokenizer) -> None:
    (killed / "run.json").unlink()
    with pytest.raises(CheckpointMismatch, match=r"run\.json cannot be read"):
        tune(patch_model(llama(), "t5", factor=FACTOR), tokenizer, out=killed, save_every=2, resume=True)


def test_an_incomplete_checkpoint_is_passed_over(killed, tokenizer) -> None:
    (killed / "checkpoint-4" / "adapter_model.safetensors").write_bytes(b"half")
    shares: list[float] = []
    tune(
        patch_model(llama(), "t5", factor=FACTOR), tokenizer, out=killed, save_every=2, resume=True,
        progress=lambda share, _: shares.append(share),
    )  # fmt: skip
    assert shares[0] == pytest.approx(3 / 6)


def test_a_folder_belongs_to_one_run(killed, tokenizer) -> None:
    model = patch_model(llama(), "t5", factor=FACTOR)
    with pytest.raises(CheckpointMismatch, match="earlier run"):
        tune(model, tokenizer, out=killed)
    with pytest.raises(CheckpointMismatch, match="another rank: 2 then, 4 now"):
        tune(model, tokenizer, out=killed, rank=4, resume=True)
    with pytest.raises(CheckpointMismatch, match="another scheme"):
        tune(patch_model(llama(), "yarn", factor=FACTOR), tokenizer, out=killed, resume=True)
    with pytest.raises(CheckpointMismatch, match="for 6 steps, and 4"):
        tune(model, tokenizer, steps=4, out=killed, save_every=2, resume=True)
    other = patch_model(llama(), "t5", factor=FACTOR)
    with torch.no_grad():
        for weight in other.parameters():
            weight *= 1.001
    with pytest.raises(CheckpointMismatch, match="started with another model"):
        tune(other, tokenizer, out=killed, save_every=2, resume=True)
    texts = TEXTS[::-1]  # as many rows
    with pytest.raises(CheckpointMismatch, match="started with another text"):
        tune(model, tokenizer, texts=texts, out=killed, save_every=2, resume=True)
    shutil.rmtree(killed)
    tune(model, tokenizer, out=killed, steps=1, resume=True)  # nothing to resume: a fresh start


class Failing(TrainerCallback):
    """Ends a run after its second step by an exception."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if state.global_step == 2:
            raise self.error


def state_of(model) -> tuple[list, list]:
    """Modules with their types, modes and hooks; parameters with what is trained and has a gradient."""
    modules = [
        (name, type(module), module.training, len(module._forward_hooks), "forward" in vars(module))
        for name, module in model.named_modules()
    ]
    return modules, [(name, id(w), w.dtype, w.requires_grad, w.grad is None) for name, w in model.named_parameters()]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize(
    "settings", [{"method": "lora"}, {"method": "full"}, {"method": "lora", "bf16": True}], ids=str
)
def test_a_run_that_fails_leaves_the_model_as_it_was(settings, error, tokenizer, tmp_path) -> None:
    model = patch_model(llama(), "yarn", factor=FACTOR).eval()
    model.lm_head.weight.requires_grad_(False)
    before = state_of(model)
    again = {**settings, "out": tmp_path, "save_every": 1, "gradient_checkpointing": True}
    with pytest.raises(error):
        run(model, tokenizer, callbacks=[Failing(error)], **again)
    assert state_of(model) == before
    assert (tmp_path / "checkpoint-1").is_dir()
    if settings["method"] == "lora":
        resumed = run(model, tokenizer, resume=True, **again)
        assert [point.step for point in resumed.curve if point.loss is not None] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_lowers_the_loss_and_leaves_the_rest(method, tokenizer) -> None:
    model = patch_model(llama(), "yarn", factor=FACTOR)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    tuned = run(model, tokenizer, method=method, steps=20, batch=8, length=TARGET - 2)
    losses = [point.loss for point in tuned.curve]
    assert sum(losses[-5:]) < sum(losses[:5]) - 0.02
    frozen = {name: p for name, p in tuned.model.named_parameters() if not p.requires_grad}
    assert bool(frozen) == (method != "full")
    for name, value in frozen.items():
        name = name.removeprefix("base_model.").removeprefix("model.").replace(".base_layer", "")
        name = name.replace(".original_module", "")
        assert torch.equal(value, before[name] if name in before else before["model." + name]), name


@pytest.mark.parametrize("kind", HOSTS)
def test_held_out_text_is_measured_before_between_and_after(kind, tokenizer, tmp_path) -> None:
    model = patch_model(HOSTS[kind](), "alibi", factor=FACTOR)
    tuned = run(
        model, tokenizer, held_out=TEXTS[:1], eval_every=2, eval_windows=3, steps=4, chunked_loss=False, out=tmp_path
    )
    measured = {point.step: point.held_out for point in tuned.curve if point.held_out}
    assert list(measured) == [0, 2, 4]
    assert list(measured[0]) == [TRAINED, 2 * TRAINED, TARGET]
    assert json.loads((tmp_path / "curve.json").read_text())[-1]["held_out"].keys() == {"16", "32", "64"}
    if kind != "bert":  # by hand: the mean loss of the last 8 tokens of three windows
        tokens = torch.tensor([*tokenizer(TEXTS[0])["input_ids"], 1])
        ends = (TARGET, (TARGET + len(tokens)) // 2, len(tokens))
        for length in measured[4]:
            losses = []
            for end in ends:
                window = tokens[None, end - length : end]
                with torch.no_grad():
                    logits = tuned.model(window).logits[0, -9:-1]
                losses.append(torch.nn.functional.cross_entropy(logits, window[0, -8:]).item())
            assert measured[4][length] == pytest.approx(sum(losses) / 3, abs=1e-5)
            assert tuned.curve[-1].windows[length] == pytest.approx(losses, abs=1e-5)


def test_separate_documents_do_not_see_each_other(tokenizer) -> None:
    """A row of documents has the loss of its documents one by one."""
    model = patch_model(llama(), "yarn", factor=FACTOR)
    short = [" ".join(f"w{(i * j) % 28}" for i in range(20)) for j in range(1, 4)]  # with the end, 21 tokens each
    seen: list[float] = []
    run(
        model, tokenizer, texts=short, length=63, packing="separate", steps=1, learning_rate=1e-9,
        progress=lambda _, loss: seen.append(loss),
    )  # fmt: skip
    losses = []
    for text in short:
        ids = torch.tensor([[*tokenizer(text)["input_ids"], 1]])
        with torch.no_grad():
            losses.append(model(ids, labels=ids).loss.item())
    assert seen[0] == pytest.approx(sum(losses) / 3, abs=1e-5)
    with torch.no_grad():  # control: joined, they see their predecessors
        ids = torch.tensor([[t for text in short for t in (*tokenizer(text)["input_ids"], 1)]])
        assert abs(model(ids, labels=ids).loss.item() - seen[0]) > 1e-4


def assert_close(one, two) -> None:
    """Equal weights, up to the rounding of sums in another order."""
    pairs = list(zip(one.state_dict().items(), two.state_dict().items(), strict=True))
    for (name, a), (other, b) in pairs:
        assert name == other
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("bf16", [False, True])
def test_an_adapter_trained_on_bf16_is_saved_as_it_was_trained(bf16, tokenizer, tmp_path) -> None:
    model = patch_model(llama().bfloat16(), "t5", factor=FACTOR)
    started: list[RunStart] = []
    tuned = finetune(
        model, tokenizer, TEXTS, Training(length=TARGET, steps=20, rank=2, learning_rate=2e-4, bf16=bf16),
        out=tmp_path, announce=started.append,
    )  # fmt: skip
    trained = {name: weight for name, weight in tuned.model.named_parameters() if weight.requires_grad}
    assert {weight.dtype for weight in trained.values()} == {torch.float32}
    assert all((weight != 1).all() for name, weight in trained.items() if "norm" in name)
    again = load_peft_adapter(patch_model(llama().bfloat16(), "t5", factor=FACTOR), tmp_path)
    ids = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"][:, :TARGET]
    with torch.no_grad():
        assert torch.equal(again(ids).logits, tuned.model(ids).logits)
    assert started == [tuned.start]
    card = (tmp_path / "README.md").read_text()
    assert "| steps | 20 |" in card
    assert "| learning rate | 0.0002 |" in card
