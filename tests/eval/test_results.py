"""Rows, and files that are whole or not there."""

from __future__ import annotations

from hf_posenc.eval.results.rows import Row, rows_of

RAW = {
    "results": {
        "posenc_passkey": {
            "name": "posenc_passkey", "alias": "posenc_passkey", "sample_len": 4,
            "acc_L256,none": 0.75, "acc_L256_stderr,none": 0.25, "acc_L256_D50,none": 0.5,
            "acc_L256_D50_stderr,none": "N/A",
        },
        "lambada": {"name": "lambada", "sample_len": 10, "acc,none": 0.5, "acc_stderr,none": 0.1},
    },
    "n-samples": {"posenc_passkey": {"original": 8, "effective": 4}, "lambada": {"original": 10, "effective": 10}},
}  # fmt: skip


def test_rows_are_tidy() -> None:
    assert rows_of(RAW, scheme="pi", model="m") == [
        Row("m", "pi", "posenc_passkey", 256, None, "acc", 0.75, 0.25, 4),
        Row("m", "pi", "posenc_passkey", 256, 0.5, "acc", 0.5, None, 4),
        Row("m", "pi", "lambada", None, None, "acc", 0.5, 0.1, 10),
    ]
