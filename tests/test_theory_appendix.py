"""Every inequality of the appendix on random instances: the corrected ones hold, the slips show."""

from pathlib import Path

import pytest

from targetopt.lab.studies.theory.appendix import INEQUALITIES, Case, check
from targetopt.lab.studies.theory.appendix.registry import inequality
from targetopt.types import BadArgument


@pytest.mark.parametrize("name", INEQUALITIES)
def test_corrected_holds_and_printed_fails_exactly_where_we_say(name):
    found = check(name)
    statement = INEQUALITIES[name]
    assert found.corrected_failures == 0, found
    assert (found.printed_failures == 0) == statement.printed_holds, found
    assert statement.says
    assert statement.label


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", [n for n, i in INEQUALITIES.items() if i.instances > 20])
def test_more_instances(name, seed):
    found = check(name, seed=seed)
    assert found.corrected_failures == 0, found
    if INEQUALITIES[name].printed_holds:
        assert found.printed_failures == 0, found


def test_every_labelled_statement_of_the_appendix_is_there():
    labels = {i.label for i in INEQUALITIES.values()}
    assert labels >= {
        "lemma:deterministic-algo",
        "lem:itr_bnd_fth",
        "lem:exc_itr_bnd2",
        "prop:gd_sc_bnd",
        "prop:proj-err",
        "prop:sso-lb",
        "lem:ineq1",
        "lem:ineq2",
        "lemma:A-bound",
        "lemma:B-bound",
        "lemma:C-bound",
        "lem:sum-prod-eq",
        "lem:slb_upperbound",
    }


def test_every_statement_is_in_the_errata():
    table = (Path(__file__).parents[1] / "docs" / "errata.md").read_text(encoding="utf-8")
    for name, statement in INEQUALITIES.items():
        row = f"| {name}{' (ours)' if statement.ours else ''} | `{statement.label}` | "
        assert row + ("holds on" if statement.printed_holds else "fails") in table, row


def test_the_check_itself_can_fail():
    """A false statement is found out, in either version."""
    name = "a false statement, for this test"
    try:
        inequality(name, label="-", says="x ≤ x − 1")(lambda rng, _: Case(1.0, 0.0, 0.0))
        found = check(name, instances=5)
        assert found.printed_failures == found.corrected_failures == 5
        with pytest.raises(BadArgument, match="twice"):
            inequality(name, label="-", says="")(lambda rng, _: Case(0, 0, 0))
    finally:
        INEQUALITIES.pop(name, None)
    with pytest.raises(BadArgument, match="is none of"):
        check(name)
