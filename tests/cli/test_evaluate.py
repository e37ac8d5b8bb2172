"""`hf-posenc eval`: lm-eval's options on the command line, and options given twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_posenc.cli import main
from hf_posenc.eval import evaluate

START = ["eval", "-m", "starter:llama", "-l", "128"]


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_options_reach_the_tasks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = [
        *START, "-t", "posenc_niah_single", "--out", str(out), "--json",
        *(word for one in ("keys=3", "depths=0,1", "limit=2", "log_samples=true", "scoring=generate", "haystack=repeat",
                           "gen_kwargs=max_gen_toks=2", "batch_size=2") for word in ("--set", one)),
    ]  # fmt: skip
    code, shown, err = run(words, capsys)
    assert code == 0, err
    assert {(row["metric"], row["n"]) for row in json.loads(shown)} == {("match", 2), ("part", 2)}
    samples = json.loads(out.read_text())["lm_eval"]["samples"]["posenc_niah_single"]
    assert len(samples) == 2
    assert samples[0]["arguments"][0][1]["max_gen_toks"] == 2
    assert "The grass is green." in samples[0]["arguments"][0][0]


@pytest.mark.slow
def test_as_many_tokens_are_scored_as_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*START, "-t", "posenc_ppl", "--samples", "2", "--json"]
    shown = [run([*words, "--set", f"scored={number}"], capsys)[1] for number in ("1", "64")]
    few, usual = (next(row["value"] for row in json.loads(rows) if row["metric"] == "nll") for rows in shown)
    evaluated = evaluate("starter:llama", tasks=["posenc_ppl"], lengths=[128], samples=2, scored=1)
    assert few == pytest.approx(next(row.value for row in evaluated.rows if row.metric == "nll"), rel=1e-5)
    assert abs(few - usual) > 1e-3  # control: other tokens have another loss


def test_records_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_text("".join(json.dumps({"text": f"text {n}", "label": n % 2}) + "\n" for n in range(8)))
    code, shown, err = run([*START, "-t", "posenc_icl", "--set", "keys=2", "--set", f"data={file}", "--json"], capsys)
    assert code == 0, err
    assert {row["metric"] for row in json.loads(shown)} == {"acc", "nll"}


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["-m", "starter:gpt2"], 2, "--model"),
        (["--set", "log_samples=true"], 2, "--out"),
        (["--set", "include_path=."], 2, "--trust-tasks"),
        (["-t", "posenc_qa_file"], 2, "data=FILE"),
        (["-t", "posenc_ppl", "--set", "num_fewshot=2"], 2, "num_fewshot"),
        (["-t", "posenc_ppl", "--set", "apply_chat_template=true"], 2, "chat template"),
        (["-t", "posenc_ppl", "--set", "batch_size=many"], 2, "batch_size"),
        (["-t", "posenc_ppl", "--set", "stide=2"], 2, "stide"),
    ],
)
def test_what_cannot_take_effect_is_said(words, code: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, shown, err = run([*START, *words], capsys)
    assert (found, shown) == (code, ""), err
    assert told in err


@pytest.mark.slow
def test_results_replace_nothing_but_results(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config, results = tmp_path / "config.json", tmp_path / "results.json"
    config.write_text('{"model_type": "llama"}')
    words = [*START, "-t", "posenc_ppl", "--samples", "1", "--out"]
    code, _, err = run([*words, str(config)], capsys)
    assert (code, config.read_text()) == (2, '{"model_type": "llama"}')
    assert "holds something else" in err
    for _ in range(2):  # control: earlier results are replaced
        assert run([*words, str(results)], capsys)[0] == 0


def test_options_that_take_several_values_may_be_repeated(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, words in (("a.txt", "grass sky "), ("b.txt", "sun dog ")):
        (tmp_path / name).write_text(words * 600)
    words = [*START, "-l", "96", "-t", "posenc_ppl", "-t", "posenc_passkey", "--samples", "4", "--set", "keys=1"]
    texts = ["--text", str(tmp_path / "a.txt"), "--text", str(tmp_path / "b.txt"), "--json"]
    code, shown, err = run([*words, *texts], capsys)
    assert code == 0, err
    rows = json.loads(shown)
    assert {row["task"] for row in rows} == {"posenc_ppl", "posenc_passkey"}
    assert {row["length"] for row in rows} == {96, 128}
