"""The examples that draw: small, but drawn by the code that makes the published pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_film_of_the_beam(monkeypatch, tmp_path):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import beam_film

    monkeypatch.setattr(beam_film, "CALLS", 3)
    best = beam_film.main(str(tmp_path / "beam.gif"), "smoke")
    assert min(best, key=best.get) == "SSO, nothing chosen"
    with image.open(tmp_path / "beam.gif") as film:
        assert film.n_frames == 3


def test_the_picture_of_the_recovered_fields(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import recovered_fields

    monkeypatch.setattr(recovered_fields, "MOST", 4)
    monkeypatch.setattr(recovered_fields, "RATES", (1e-2,))
    found = recovered_fields.main(str(tmp_path / "fields.png"), "smoke")
    for sso, adam in found.values():
        assert sso.solves == adam.solves == 4
    assert (tmp_path / "fields.png").stat().st_size > 10_000
