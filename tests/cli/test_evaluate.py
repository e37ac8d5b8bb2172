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
        *START, "-t", "posenc_niah_single", "--keys", "3", "--depths", "0,1", "--limit", "2", "--log-samples",
        "--metadata", '{"scoring": "generate", "haystack": "repeat"}', "--gen-kwargs", "max_gen_toks=2", "--batch-size",
        "2", "--out", str(out), "--json",
    ]  # fmt: skip
    code, shown, err = run(words, capsys)
    assert code == 0, err
    assert {(row["metric"], row["n"]) for row in json.loads(shown)} == {("match", 2), ("part", 2)}
    samples = json.loads(out.read_text())["lm_eval"]["samples"]["posenc_niah_single"]
    assert len(samples) == 2
    assert samples[0]["arguments"][0][1]["max_gen_toks"] == 2
    assert "The grass is green." in samples[0]["arguments"][0][0]


def test_as_many_tokens_are_scored_as_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*START, "-t", "posenc_ppl", "--samples", "2", "--json"]
    shown = [run([*words, "--scored", number], capsys)[1] for number in ("1", "64")]
    few, usual = (next(row["value"] for row in json.loads(rows) if row["metric"] == "nll") for rows in shown)
    evaluated = evaluate("starter:llama", tasks=["posenc_ppl"], lengths=[128], samples=2, scored=1)
    assert few == pytest.approx(next(row.value for row in evaluated.rows if row.metric == "nll"), rel=1e-5)
    assert abs(few - usual) > 1e-3  # control: other tokens have another loss


def test_records_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_text("".join(json.dumps({"text": f"text {n}", "label": n % 2}) + "\n" for n in range(8)))
    code, shown, err = run([*START, "-t", "posenc_icl", "--keys", "2", "--data", str(file), "--json"], capsys)
    assert code == 0, err
    assert {row["metric"] for row in json.loads(shown)} == {"acc", "nll"}


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["-m", "starter:gpt2"], 2, "--model is given 2 times and takes one value"),
        (["--seed", "1", "--seed", "2"], 2, "--seed is given 2 times"),
        (["--metadata", "{"], 2, "--metadata is not valid JSON"),
        (["--metadata", "[1]"], 2, "must be a JSON object"),
        (["--samples", "3", "--metadata", '{"samples": 2}'], 2, "--samples is given, and --metadata sets samples"),
        (["--lengths", "64", "--metadata", '{"lengths": [32]}'], 2, "--lengths is given, and --metadata sets lengths"),
        (["--data", "a.json", "--metadata", '{"data": "b.json"}'], 2, "--data is given, and --metadata sets data"),
        (["--log-samples"], 2, "Pass --out FILE"),
        (["--include-path", "."], 2, "--trust-tasks"),
        (["-t", "posenc_qa_file"], 2, "Pass --data FILE"),
        (["-t", "posenc_ppl", "--num-fewshot", "2"], 2, "num_fewshot has no effect"),
        (["-t", "posenc_ppl", "--apply-chat-template"], 2, "no chat template"),
        (["-t", "posenc_ppl", "--batch-size", "many"], 2, "batch_size"),
    ],
)
def test_what_cannot_take_effect_is_said(words, code: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, shown, err = run([*START, *words], capsys)
    assert (found, shown) == (code, ""), err
    assert told in err


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
    words = [*START, "-l", "96", "-t", "posenc_ppl", "-t", "posenc_passkey", "--samples", "4", "--keys", "1"]
    texts = ["--text", str(tmp_path / "a.txt"), "--text", str(tmp_path / "b.txt"), "--json"]
    code, shown, err = run([*words, *texts], capsys)
    assert code == 0, err
    rows = json.loads(shown)
    assert {row["task"] for row in rows} == {"posenc_ppl", "posenc_passkey"}
    assert {row["length"] for row in rows} == {96, 128}
