"""Specifications: what is accepted, how it becomes runs, and errors that point at the line."""

import json
import string
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from targetopt.lab import Experiment, SpecError, expand
from targetopt.lab.spec.config import RunConfig
from targetopt.lab.spec.document import Document
from targetopt.lab.spec.experiment import _toml
from targetopt.lab.spec.methods import Sgd, Sso
from targetopt.lab.spec.problem_options import load_problem

PLUGIN = str(Path(__file__).with_name("lab_plugin.py"))

HEAD = f"""\
plugins = ["{PLUGIN}"]
epochs = 2
batch_size = 8
seeds = 2

[[problems]]
name = "tiny"

"""


def faults(text: str) -> list[tuple[int, int, str]]:
    """(line, column, message) of every fault of a specification."""
    with pytest.raises(SpecError) as caught:
        expand(Experiment.parse(Document.parse(text, "grid.toml")))
    document = caught.value.document
    if document is None:
        return [(0, 0, str(caught.value))]
    return [
        (*document.position(fault.path, on_key=fault.on_key), fault.message)
        for fault in caught.value.faults
    ]


@pytest.mark.parametrize(
    ("body", "line", "column", "said"),
    [
        ('[[methods]]\nname = "sso"\nmm = 3\n', 11, 1, "Did you mean 'm'?"),
        ('[[methods]]\nname = "sso"\nm = "many"\n', 11, 5, "valid integer"),
        ('[[methods]]\nname = "sso"\nm = [1, 10, 0]\n', 11, 13, "greater than or equal to 1"),
        ('[[methods]]\nname = "sso"\nm = true\n', 11, 5, "valid integer"),
        ('[[methods]]\nname = "sso"\nrule = "newtn"\n', 11, 8, "'newton'"),
        (
            '[[methods]]\nname = "sso"\nlr = "fast"\n',
            11,
            6,
            "a multiple ('theory*4', 'theory/4')",
        ),
        ('[[methods]]\nname = "sso"\nlr = [0.1, -1]\n', 11, 12, "or a finite number > 0"),
        ('[[methods]]\nname = "sso"\nlr = inf\n', 11, 6, "finite number"),
        ('[[methods]]\nname = "sso"\nm = []\n', 11, 5, "leaves nothing to run"),
        ('[[methods]]\nname = "ssoo"\n', 10, 8, "Did you mean 'sso'?"),
        ("[[methods]]\nm = 3\n", 9, 1, "needs a name"),
        ("[[methods]]\nname = 3\n", 10, 8, "must be text"),
        ('[[methods]]\nname = "sso"\ninner = "exact"\nm = 3\n', 12, 5, "has no m"),
        ('[[methods]]\nname = "sso"\ninner = "exact"\n', 11, 9, "needs a linear problem"),
        (
            '[[methods]]\nname = "sso"\ninner = "lbfgs"\nstep_size = 0.1\n',
            12,
            13,
            "remove step_size",
        ),
        ('[[methods]]\nname = "sso"\nfloor = 0.1\n', 11, 9, "has no floor; remove it"),
        ('[[methods]]\nname = "sso"\nrule = "newton"\nfloor = 0.0\n', 12, 9, "must be positive"),
        ('[[methods]]\nname = "sso"\ninner = "gradient-descent"\n', 11, 9, "needs step_size"),
        ('[[methods]]\nname = "sgd"\n', 9, 1, "no L_θ is known"),
        ('[[methods]]\nname = "adam"\non = { sed = 1 }\n', 11, 6, "Did you mean 'seed'?"),
        ('[[methods]]\nname = "adam"\non = "tiny"\n', 11, 6, "must be a table of problem options"),
        ('[[methods]]\nname = "sls"\nc = 1.5\n', 11, 5, "less than 1"),
        ('[[methods]]\nname = "adam"\nlabel = 3\n', 11, 9, "must be text"),
        ('[[methods]]\nname = "adam"\n[[methods]]\nname = "adam"\n', 11, 1, "repeats"),
        ('[[methods]]\nname = "adam"\nlr = [0.1, 0.1]\n', 9, 1, "repeats"),
        ('[[methods]]\nname = "adam"\n[[problems]]\nname = "tin"\n', 12, 8, "Did you mean 'tiny'?"),
        ('[[methods]]\nname = "adam"\n[[problems]]\nname = "tiny"\nseed = "x"\n', 13, 8, "integer"),
        ('[[methods]]\nname = "adam"\n[[problems]]\nname = "tiny"\nsed = 1\n', 13, 1, "'seed'"),
        (
            '[[methods]]\nname = "adam"\n[[problems]]\nname = "tiny"\nbatch_size = [9, 99]\n',
            13,
            18,
            "more than the 24 examples",
        ),
        (
            '[[methods]]\nname = "adam"\n[[problems]]\nname = "tiny"\nepochs = 0\n',
            13,
            10,
            "at least 1",
        ),
        (
            '[[methods]]\nname = "adam"\n[[problems]]\nname = "breast_cancer"\nloss = "hinge"\n',
            13,
            8,
            "must be one of",
        ),
    ],
)
def test_a_fault_is_told_with_its_line_and_column(
    body: str, line: int, column: int, said: str
) -> None:
    [(found_line, found_column, message)] = faults(HEAD + body)
    assert (found_line, found_column) == (line, column), message
    assert said in message


@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ("epoch = 3\n", 1, 1, "Did you mean 'epochs'?"),
        ("epochs = 0\n", 1, 10, "greater than or equal to 1"),
        ("epochs = 1.5\n", 1, 10, "valid integer"),
        ("seeds = 0\n", 1, 9, "at least 1"),
        ("seeds = [1, 1]\n", 1, 9, "different integers"),
        ('engine = "gpu"\n', 1, 10, "'compiled'"),
        ('plugins = ["no_such_module"]\n', 1, 12, "cannot be imported"),
        ('batch_size = [8, "half"]\n', 1, 18, "or 'full'"),
    ],
)
def test_faults_at_the_top_level(text: str, line: int, column: int, said: str) -> None:
    whole = text + '[[problems]]\nname = "breast_cancer"\n[[methods]]\nname = "adam"\n'
    [(found_line, found_column, message)] = faults(whole)
    assert (found_line, found_column) == (line, column), message
    assert said in message


def test_missing_parts_and_all_faults_at_once() -> None:
    found = faults("epochs = 0\nseeds = -1\n")
    assert [message for _, _, message in found] == [
        "the key 'problems' is missing",
        "the key 'methods' is missing",
        "-1 must be at least 1 (a number of seeds), or a list of seeds",
        "0 should be greater than or equal to 1",
    ]
    two = '[[methods]]\nname = "sso"\nm = 0\n[[methods]]\nname = "adam"\nlr = "x"\n'
    assert [line for line, _, _ in faults(HEAD + two)] == [11, 14]


def test_invalid_toml_and_duplicate_keys_show_the_place() -> None:
    with pytest.raises(SpecError, match=r"grid.toml:2:\d+: not valid TOML.*overwrite"):
        Document.parse("epochs = 1\nepochs = 2\n", "grid.toml")
    with pytest.raises(SpecError, match=r"grid.toml:1:\d+: not valid TOML"):
        Document.parse("epochs = \n", "grid.toml")


def test_the_message_shows_the_source_line_with_a_caret() -> None:
    with pytest.raises(SpecError) as caught:
        expand(Experiment.parse(Document.parse(HEAD + '[[methods]]\nname = "sqd"\n', "grid.toml")))
    assert str(caught.value) == (
        "grid.toml:10:8: methods[0].name: 'sqd' is no method. Did you mean 'sgd'?\n"
        '    name = "sqd"\n'
        "           ^"
    )


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(SpecError, match="not UTF-8"):
        Experiment.read(path)


# --- grids -----------------------------------------------------------------------------------


def tiny(**changes: object) -> Experiment:
    fields: dict[str, object] = {
        "problems": [{"name": "tiny"}],
        "methods": [{"name": "sso"}],
        "plugins": [PLUGIN],
        "epochs": 2,
        "batch_size": 8,
    }
    return Experiment(**{**fields, **changes})


def test_lists_are_alternatives_and_every_combination_is_one_run() -> None:
    runs = expand(
        tiny(
            problems=[{"name": "tiny", "seed": [0, 1], "batch_size": [4, "full"], "epochs": 7}],
            methods=[{"name": "sso", "m": [1, 10], "lr": ["theory", 0.5]}, {"name": "adam"}],
            seeds=[3, 5],
        )
    )
    assert len({run.id for run in runs}) == len(runs) == 2 * 2 * (4 + 1) * 2
    assert {run.method_label for run in runs} == {
        "SSO m=1",
        "SSO m=10",
        "SSO m=1 lr=0.5",
        "SSO m=10 lr=0.5",
        "Adam",
    }
    assert {(run.batch_size, run.epochs, run.seed) for run in runs} == {
        (size, 7, seed) for size in (4, "full") for seed in (3, 5)
    }


def test_labels_of_ones_own_name_what_varies() -> None:
    methods = [{"name": "sso", "label": "ours", "m": [1, 2]}, {"name": "adam", "label": "theirs"}]
    assert [run.method_label for run in expand(tiny(methods=methods))] == [
        "ours m=1",
        "ours m=2",
        "theirs",
    ]


def test_an_id_is_of_the_configuration_not_of_how_it_is_written() -> None:
    [plain] = expand(tiny())
    [written] = expand(tiny(methods=[{"m": 20, "lr": "theory", "name": "sso", "label": "x"}]))
    [integer] = expand(tiny(methods=[{"name": "sso", "lr": 1}]))
    [floating] = expand(tiny(methods=[{"name": "sso", "lr": 1.0}]))
    assert plain.id == written.id
    assert integer.id == floating.id != plain.id
    assert json.loads(json.dumps(plain.resolved())) == plain.resolved()


def test_toml_written_is_toml_read(tmp_path: Path) -> None:
    experiment = tiny(
        name='a "quoted" \\ name\nwith lines, é and \u2028',
        methods=[{"name": "sso", "m": [1, 10], "lr": ["theory", 1e-9]}, {"name": "adam"}],
        seeds=[4, 5],
    )
    path = tmp_path / "spec.toml"
    path.write_text(experiment.to_toml(), encoding="utf-8")
    again = Experiment.read(path)
    assert again.model_dump() == experiment.model_dump()
    assert [run.id for run in expand(again)] == [run.id for run in expand(experiment)]


# --- positions, against what tomllib reads at them ----------------------------------------------

keys = st.text(string.ascii_letters + string.digits + "-_ .#[]\"'=é", min_size=1, max_size=6)
scalars = (
    st.integers(-(2**40), 2**40)
    | st.booleans()
    | st.floats(allow_nan=False)
    | st.text(string.ascii_letters + "\"'\\#[]{},= \té∑🎲", max_size=8)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


def toml_key(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)


def toml_value(value: object, gap: str) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{toml_key(k)} = {toml_value(v, ' ')}" for k, v in value.items())
        return "{" + inner + "}"
    if isinstance(value, list):
        return "[" + gap + f",{gap}".join(toml_value(v, gap) for v in value) + "]"
    return _toml(value)


def leaves(value: object, path: tuple[str | int, ...]):
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, dict | list):
            yield from leaves(item, (*path, key))
        else:
            yield (*path, key), item


@given(
    top=st.dictionaries(keys, values, max_size=4),
    tables=st.lists(st.dictionaries(keys, values, max_size=3), max_size=3),
    gap=st.sampled_from([" ", "\n", " # a ] comment '\n  "]),
)
def test_at_every_position_stands_the_value(top: dict, tables: list[dict], gap: str) -> None:
    top.pop("tables", None)
    text = "# first\n"
    text += "".join(f'{toml_key(k)} = {toml_value(v, gap)}  # {{ "\n' for k, v in top.items())
    for table in tables:
        text += "\n  [[ tables ]] # x\n"
        text += "".join(f"\t{toml_key(k)}={toml_value(v, gap)}\n" for k, v in table.items())
    document = Document.parse(text)
    assert document.data == ({**top, "tables": tables} if tables else top)
    lines = text.split("\n")
    for path, value in leaves(document.data, ()):
        line, column = document.position(path)
        written = _toml(value)
        assert lines[line - 1][column - 1 :].startswith(written), (path, lines[line - 1])
        assert tomllib.loads(f"x = {written}")["x"] == value
        if isinstance(path[-1], str):
            line, column = document.position(path, on_key=True)
            assert lines[line - 1][column - 1 :].startswith(toml_key(path[-1]))


def test_dotted_keys_multiline_strings_and_nested_tables() -> None:
    document = Document.parse(
        'a.b . "c.d" = 1\r\ns = """one\n"two"\n"""\nt = \'\'\'x\n\'\'\'\n'
        "[[m]]\nx = 1\n[m.sub]\ny = 2\n[[m]]\nx = {p = {q = [1, {r = 2}]}}\n[z.w]\nv = 1979-05-27 07:32:00\n"
    )
    assert document.position(("a", "b", "c.d")) == (1, 15)
    assert document.position(("a", "b", "c.d"), on_key=True) == (1, 7)
    assert document.position(("t",)) == (5, 5)
    assert document.position(("m", 0, "sub", "y")) == (10, 5)
    assert document.position(("m", 1, "x", "p", "q", 1, "r")) == (12, 24)
    assert document.position(("z", "w", "v")) == (14, 5)
    assert document.position(("m", 1, "unknown")) == (11, 1)


def test_a_method_can_be_for_some_of_the_problems_alone() -> None:
    experiment = Experiment(
        problems=[
            {"name": "breast_cancer", "loss": ["squared", "logistic"], "weight_decay": [0.0, 0.1]}
        ],
        methods=[
            {"name": "sgd"},
            {
                "name": "sso",
                "inner": "adam",
                "step_size": 0.1,
                "on": {"loss": "logistic", "weight_decay": [0.1]},
            },
        ],
        batch_size=64,
    )
    runs = expand(Experiment.parse(Document.parse(experiment.to_toml(), "grid.toml")))
    assert [run.id for run in runs] == [run.id for run in expand(experiment)]
    chosen = [run for run in runs if run.method.name == "sso"]
    assert [(run.problem["loss"], run.problem["weight_decay"]) for run in chosen] == [
        ("logistic", 0.1)
    ]
    assert chosen[0].engine == "torch"  # the compiled driver has no Adam inside
    assert "on" not in chosen[0].resolved()["method"]
    assert len(runs) == 5


@pytest.mark.parametrize(
    ("lr", "factor"),
    [("theory", 1.0), ("theory*4", 4.0), ("theory / 8", 0.125), ("theory*1", 1.0), (0.3, None)],
)
def test_multiples_of_the_theoretical_step(lr: float | str, factor: float | None) -> None:
    """1/(2L) with L = ¼ for SSO, 1/(2 L_θ) for SGD; one spelling each, so one run each."""
    methods = [{"name": "sso", "lr": lr}, {"name": "sgd", "lr": lr}]
    for run in expand(Experiment(problems=[{"name": "breast_cancer"}], methods=methods)):
        assert isinstance(run.method, Sso | Sgd)
        problem = load_problem(run.problem)
        L = problem.target_smoothness if run.method.name == "sso" else problem.parameter_smoothness
        assert L is not None
        expected = lr if factor is None else factor / (2 * L)
        learned = run.method.learning_rate(problem)
        if learned is None:  # SSO's own default is the same
            assert factor == 1.0
        else:
            assert learned == pytest.approx(expected)
        assert (run.method.lr == "theory") == (factor == 1.0)
    for wrong in ("theory*0", "theory*-1", "teory", "4*theory", "theory*"):
        with pytest.raises(SpecError, match="must be 'theory', a multiple"):
            expand(tiny(methods=[{"name": "sgd", "lr": wrong}]))
    with pytest.raises(SpecError, match="has no step 1/\\(2L\\)"):
        expand(tiny(methods=[{"name": "sso", "rule": "newton", "lr": "theory*2"}]))


def test_a_floor_and_a_first_guess_make_other_runs_and_leave_all_ids_alone() -> None:
    def runs(**options: object) -> list[RunConfig]:
        newton = {"name": "sso", "rule": "newton", "m": 20, **options}
        problem = {"name": "breast_cancer", "loss": "logistic"}
        return expand(Experiment(problems=[problem], methods=[newton], batch_size=64))

    [usual], [floored], [bold] = runs(), runs(floor=1e-5), runs(step_size=1e4)
    assert len({usual.id, floored.id, bold.id}) == 3
    assert "floor" not in usual.resolved()["method"]  # as in runs from before there was one
    assert floored.method_label == "SSO-Newton m=20 floor=1e-05"
    built = [load_problem(usual.problem), 64]
    made = [each.method.on_linear(*built) for each in (usual, floored, bold)]
    assert [one.rule.floor for one in made] == [0.03, 1e-5, 0.03]
    assert [one.inner.initial_step for one in made] == [1.0, 1.0, 1e4]
