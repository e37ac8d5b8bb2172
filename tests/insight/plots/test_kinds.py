"""Plots of what explanatory texts show: one code among all, absolute against relative queries, two axes, noise."""

from __future__ import annotations

import pytest
import torch

from hf_posenc import load_starter
from hf_posenc.errors import OptionOutOfRange, OutsideModel
from hf_posenc.insight.plots import Shapes, numbers
from hf_posenc.insight.plots.animate import frames
from hf_posenc.insight.plots.catalogue import plot_of
from hf_posenc.insight.plots.plot import request_of

SMALL = Shapes(heads=2, head_dim=8, width=16)


def test_codes_are_animated_over_positions() -> None:
    films = frames(plot_of("code_at"), request_of("binary", shapes=SMALL, position=12), count=5)
    assert [film[0].numbers["position"] for film in films] == [0, 3, 6, 9, 12]
    for film in films:
        found = film[0].numbers
        digits = [float(bit) for bit in reversed(f"{found['position']:016b}")]
        assert found["code"][found["position"]].tolist() == digits
    with pytest.raises(OptionOutOfRange, match="0 … 7"):
        numbers("binary", "code_at", shapes=SMALL, length=8, position=8)


def test_queries_turn_wander_or_stay() -> None:
    rope, alibi, sinusoidal = (
        sheet.numbers for sheet in numbers("rope,alibi,sinusoidal", "queries_keys", shapes=SMALL)
    )
    norms = rope["queries"].norm(dim=1)
    assert torch.allclose(norms, norms[:1].expand_as(norms), rtol=1e-5)
    steps = torch.view_as_complex(rope["keys"].contiguous()).angle().diff().remainder(2 * torch.pi)
    assert torch.allclose(steps, steps[:1].expand_as(steps), atol=1e-4)
    assert len(alibi["queries"].unique(dim=0)) == 1
    assert len(sinusoidal["queries"].unique(dim=0)) == 12
    assert max(rope["change"], alibi["change"]) < 1e-5
    assert sinusoidal["change"] > 0.05


def test_queries_turn_where_the_length_decides_how_fast() -> None:
    """Within the trained length dynamic NTK turns as RoPE does."""
    dynamic, rope = (sheet.numbers for sheet in numbers("dynamic_ntk,rope", "queries_keys", shapes=SMALL, factor=4))
    assert dynamic["channels"] == rope["channels"]
    assert torch.allclose(dynamic["queries"], rope["queries"], atol=1e-6)
    assert torch.allclose(dynamic["keys"], rope["keys"], atol=1e-6)


def test_a_plane_has_two_channels() -> None:
    with pytest.raises(OptionOutOfRange, match="two"):
        numbers("rope", "queries_keys", shapes=SMALL, channels=(0, 1, 2))


def test_one_angle_for_two_axes_confuses_a_diagonal() -> None:
    found = numbers("rope_nd", "mixed_axes", shapes=Shapes(heads=2, head_dim=16, width=16), length=49)[0].numbers
    assert found["same_as_itself"] == [0, 6]
    own = 100.0 ** -(torch.arange(4, dtype=torch.float64) / 4)  # base 100, half of the 8 pairs for each axis
    away = torch.arange(-3, 4, dtype=torch.float64)
    one = (away[:, None] * own).cos().mean(1)
    assert torch.allclose(found["axial"].double(), (one[:, None] + one) / 2, atol=1e-5)
    rows, columns = torch.arange(7)[:, None], torch.arange(7)
    diagonal = found["mixed"][rows + columns == 6]
    assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal))


def test_integers_drown_real_embeddings() -> None:
    model = load_starter("llama")[0]
    integer, binary = (sheet.numbers for sheet in numbers("integer,binary", "drowned", model=model, length=16))
    tokens = model.get_input_embeddings().weight.detach().double()
    tokens = tokens[:: -(-len(tokens) // 512)]
    wanted = torch.cosine_similarity(tokens, tokens + 5, dim=1)
    assert float(integer["cosine"][5]) == pytest.approx(float(wanted.mean()), abs=1e-5)
    assert float(integer["cosine"][0]) == pytest.approx(1, abs=1e-5)
    assert float(integer["cosine"][15]) < 0.1 < 0.5 < float(binary["cosine"][15])


def test_without_a_model_there_are_no_embeddings_to_drown() -> None:
    with pytest.raises(OutsideModel, match="starter:llama"):
        numbers("integer", "drowned", shapes=SMALL)
