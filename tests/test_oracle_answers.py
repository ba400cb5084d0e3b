"""Waiting without a process: questions and answers as files, told in another process."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch

import targetopt as to
from forked import forked

BATCH = torch.tensor([11, 3, 8, 5, 2, 9])


def parts():
    torch.manual_seed(0)
    x = torch.randn(12, 4, dtype=torch.float64)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)
    ).double()
    # a fixed number of steps: how many "auto" makes depends on how long the answer was waited for
    return model, to.SSO(model.parameters(), lr=0.5, inner=to.LBFGS(max_steps=20)), x


def answered(question: Path, out: Path, keep=None) -> None:
    """Somebody with other tools answers ½‖z‖², in an order of their own."""
    table = pyarrow.parquet.read_table(question).to_pylist()[::-1]
    rows = [
        {
            "id": row["id"],
            "question": row["question"],
            "loss": sum(v * v for v in row["targets"]) / 2,
            "gradient": row["targets"],
        }
        for row in table
        if keep is None or row["id"] in keep
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), out)


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def test_reordered_answers_give_the_same_bits(tmp_path):
    model, opt, x = parts()
    query = opt.ask(lambda: model(x[BATCH]), index=BATCH)
    query.export(tmp_path / "batch.parquet", inputs=x[BATCH])
    answered(tmp_path / "batch.parquet", tmp_path / "answered.parquet")
    opt.tell(query, lambda: model(x[BATCH]), to.Answers.read(tmp_path / "answered.parquet"))
    other, direct, _ = parts()
    direct.step(lambda: other(x[BATCH]), lambda z: (z**2).sum(dim=1) / 2, index=BATCH)
    assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(other), strict=True))
    table = pyarrow.parquet.read_table(tmp_path / "batch.parquet").to_pydict()
    assert table["id"] == BATCH.tolist()
    assert table["inputs"] == x[BATCH].tolist()


def test_names_given_to_ask_are_the_ids(tmp_path):
    model, opt, x = parts()
    names = ["ada", "bob", "cyd", "dan", "eve", "fay"]
    query = opt.ask(lambda: model(x[BATCH]), ids=names)
    query.export(tmp_path / "batch.parquet")
    answered(tmp_path / "batch.parquet", tmp_path / "answered.parquet", keep=names[:5])
    with pytest.raises(to.BadAnswer, match=r"1 of 6 rows have no answer: ids 'fay'\."):
        opt.tell(query, lambda: model(x[BATCH]), to.Answers.read(tmp_path / "answered.parquet"))
    some = to.Answers.read(tmp_path / "answered.parquet", partial=True)
    assert opt.tell(query, lambda: model(x[BATCH]), some).step == 1


def tell(folder):
    model, opt, x = parts()
    state = torch.load(folder / "state.pt", weights_only=True)
    model.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    query = pickle.loads((folder / "query").read_bytes())
    opt.tell(query, lambda: model(x[BATCH]), to.Answers.read(folder / "answered.parquet"))
    torch.save(model.state_dict(), folder / "out.pt")


def test_told_in_another_process(tmp_path):
    model, opt, x = parts()
    query = opt.ask(lambda: model(x[BATCH]), index=BATCH)
    query.export(tmp_path / "batch.parquet")
    (tmp_path / "query").write_bytes(pickle.dumps(query))
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, tmp_path / "state.pt")
    answered(tmp_path / "batch.parquet", tmp_path / "answered.parquet")
    forked(tell, tmp_path)
    opt.step(lambda: model(x[BATCH]), lambda z: (z**2).sum(dim=1) / 2, index=BATCH)
    told = torch.load(tmp_path / "out.pt", weights_only=True)
    assert all(torch.equal(told[name], value) for name, value in model.state_dict().items())


def test_missing_rows_are_named_or_left_out(tmp_path):
    model, opt, x = parts()
    before = weights(model)
    query = opt.ask(lambda: model(x[BATCH]), index=BATCH)
    query.export(tmp_path / "batch.parquet")
    answered(tmp_path / "batch.parquet", tmp_path / "some.parquet", keep=[3, 2, 11, 8])
    with pytest.raises(to.BadAnswer, match=r"2 of 6 rows have no answer: ids 5, 9\."):
        opt.tell(query, lambda: model(x[BATCH]), to.Answers.read(tmp_path / "some.parquet"))
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))
    some = to.Answers.read(tmp_path / "some.parquet", partial=True)
    opt.tell(query, lambda: model(x[BATCH]), some)
    other, smaller, _ = parts()
    kept = torch.tensor([11, 3, 8, 2])
    smaller.step(lambda: other(x[kept]), lambda z: (z**2).sum(dim=1) / 2, index=kept)
    for a, b in zip(weights(model), weights(other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def told(ids, losses=None, **options):
    model, opt, x = parts()
    query = opt.ask(lambda: model(x[BATCH]), index=BATCH)
    columns = {"losses": losses or [1.0] * len(ids), "gradients": [[0.0, 1.0]] * len(ids)}
    return opt.tell(query, lambda: model(x[BATCH]), to.Answers(ids, columns, **options))


def test_wrong_answers_are_refused():
    with pytest.raises(to.BadAnswer, match="more than once: 3;"):
        told([11, 3, 8, 5, 2, 9, 3])
    with pytest.raises(to.BadAnswer, match="ids that were not asked: 4;"):
        told([11, 3, 8, 5, 2, 4])
    with pytest.raises(to.BadAnswer, match="belong to another question"):
        told(BATCH.tolist(), question="0" * 32)
    with pytest.raises(to.BadAnswer, match="another number of rows"):
        told(BATCH.tolist(), losses=[1.0])
    with pytest.raises(to.BadAnswer, match="not finite"):
        told(BATCH.tolist(), losses=[float("nan")] * 6)
    with pytest.raises(to.BadAnswer, match="none of the rows"):
        told([], losses=[], partial=True)
    assert told(BATCH.tolist()[::-1]).step == 1


def test_files_that_are_wrong_are_refused(tmp_path):
    model, opt, x = parts()
    query = opt.ask(lambda: model(x[BATCH]))
    with pytest.raises(to.BadArgument, match=r"must end in \.parquet or \.jsonl"):
        query.export(tmp_path / "batch.csv")
    query.export(tmp_path / "batch.jsonl")
    with pytest.raises(to.BadArgument, match="exists"):
        query.export(tmp_path / "batch.jsonl")
    assert [
        json.loads(line)["id"] for line in (tmp_path / "batch.jsonl").read_text().splitlines()
    ] == list(range(6))
    with pytest.raises(to.BadAnswer, match="has no column 'losses' and no column 'gradients'"):
        to.Answers.read(tmp_path / "batch.jsonl")
    (tmp_path / "broken.jsonl").write_text('{"id": 1}\n{"id": ')
    with pytest.raises(to.BadAnswer, match="line 2"):
        to.Answers.read(tmp_path / "broken.jsonl")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(to.BadAnswer, match="cannot be read as parquet"):
        to.Answers.read(tmp_path / "broken.parquet")
    with pytest.raises(to.BadArgument, match="there is no file"):
        to.Answers.read(tmp_path / "absent.parquet")


def test_labels_come_back_as_answers_too(tmp_path):
    model, opt, x = parts()
    query = opt.ask(lambda: model(x[BATCH]))
    lines = [json.dumps({"id": i, "label": i % 2}) for i in reversed(range(6))]
    (tmp_path / "labels.jsonl").write_text("\n".join(lines))
    form = to.teachers.from_labels(to.losses.CrossEntropy)
    opt.tell(query, lambda: model(x[BATCH]), to.Answers.read(tmp_path / "labels.jsonl", form=form))
    other, direct, _ = parts()
    direct.step(lambda: other(x[BATCH]), to.losses.CrossEntropy(torch.arange(6) % 2))
    assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(other), strict=True))
