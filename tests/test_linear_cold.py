"""What happens before the first fit: kernels are asked for together, and the user is told when it takes long."""

import logging
import time

import numpy as np
import pytest

import targetopt as to
from targetopt.linear import backend, fit

pytest.importorskip("numba")

import numba as nb
from numba.core.cpu import CPUContext
from numba.core.dispatcher import Dispatcher

from targetopt.linear.kernels import rules
from targetopt.linear.kernels.compiler import build, jit
from targetopt.linear.kernels.data.gathered import gathering
from targetopt.linear.kernels.inner import solvers
from targetopt.linear.kernels.runs import engine, sso


@pytest.fixture
def cold(monkeypatch):
    """A machine whose cache is empty; the list of what each compiling process was asked for."""
    asked = []
    monkeypatch.setattr(jit, "_prepared", set())
    monkeypatch.setattr(jit._BuiltElsewhere, "lacks", lambda cache, sig: True)
    monkeypatch.setattr(
        jit,
        "_build_in_one_process",
        lambda wanted: asked.append({function.__qualname__ for function, _ in wanted}),
    )
    return asked


def test_what_is_lacking_is_asked_for_at_once_and_once(cold):
    wanted = (sso.running(), gathering(), rules.gradient_step.request)
    jit.prepare(*wanted)
    assert cold == [{"run", "gather", "gradient_step"}]
    jit.prepare(*wanted)
    assert len(cold) == 1
    jit.prepare(*wanted, solvers.descend.request)
    assert len(cold) == 1  # a single one is compiled when it is first called


class Asked(Exception):
    """What a run has asked for; nothing is compiled after it."""


@pytest.mark.parametrize(
    ("method", "needed"),
    [
        ({"inner": to.Armijo(), "batch_size": 2}, {"run", "descend", "gather", "gradient_step"}),
        ({"inner": to.Armijo()}, {"run", "descend", "gradient_step"}),
        ({"inner": to.LBFGS(), "rule": to.LineSearch()}, {"run", "lbfgs", "line_search"}),
    ],
)
def test_a_run_asks_for_what_it_needs_and_no_more(monkeypatch, method, needed):
    def prepare(*wanted):
        raise Asked({kernel.py_func.__qualname__ for kernel, _ in wanted})

    monkeypatch.setattr(engine, "prepare", prepare)
    with backend.use("numba"), pytest.raises(Asked) as asked:
        to.linear.Run(np.eye(4), np.array([1.0, -1.0, 1.0, -1.0]), **method)
    assert asked.value.args == (needed,)


def test_the_types_that_are_prepared_are_those_of_the_calls():
    """Otherwise a run would compile its kernels twice."""
    X, y = np.eye(4), np.array([1.0, -1.0, 1.0, -1.0])
    with backend.use("numba"):
        fit(X, y, inner=to.LBFGS(max_steps=2), batch_size=2, epochs=1)
        fit(X, y, inner=to.LBFGS(max_steps=2), epochs=1)
    for kernel, types in (sso.running(), gathering()):
        assert kernel.signatures == [types]
    assert rules.gradient_step.request == (rules.gradient_step, rules.CALLS.signature)
    assert solvers.lbfgs.request == (solvers.lbfgs, solvers.CALLS.signature)


@pytest.mark.parametrize(("seconds", "told"), [(0.0, True), (60.0, False)])
def test_the_user_is_told_when_compiling_takes_long(monkeypatch, caplog, seconds, told):
    monkeypatch.setattr(jit, "PATIENCE", seconds)

    def slow(wanted):
        deadline = time.monotonic() + (30.0 if told else 0.0)
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.01)

    monkeypatch.setattr(jit, "_build_in_one_process", slow)
    with caplog.at_level(logging.WARNING, logger="targetopt"):
        jit._build([(fit, None), (fit, None)])
    assert [record.getMessage() for record in caplog.records] == (
        [
            "targetopt compiles 2 kernels for linear models. This happens once; the machine code is kept."
        ]
        if told
        else []
    )


def test_a_callee_is_compiled_for_types_whatever_is_known_of_a_number(monkeypatch):
    """In the process that compiles; elsewhere numba is as it was."""
    monkeypatch.setattr(Dispatcher, "get_call_template", Dispatcher.get_call_template)
    build._take_no_literals()

    def own(number, flag):
        return number if flag else -number

    def foreign(number):
        return number

    own.__module__ = "targetopt.of_this_test"
    own, foreign = nb.njit(own), nb.njit(foreign)

    @nb.njit
    def count():
        i, total = 0, 0
        while i < 3:
            total += own(i, True) + foreign(2)
            i += 1
        return total

    assert count() == 9
    assert own.signatures == [(nb.types.int64, nb.types.boolean)]
    assert [type(each) for each in foreign.signatures[0]] == [nb.types.IntegerLiteral]


def test_only_the_kernel_that_was_asked_for_is_wrapped(monkeypatch):
    wrapped = []
    for name in ("create_cpython_wrapper", "create_cfunc_wrapper"):
        monkeypatch.setattr(
            CPUContext,
            name,
            lambda context, library, about, *rest, **more: wrapped.append(about.qualname),
        )
    for owner, name in (
        (CPUContext, "get_executable"),
        (build.JITCodeLibrary, "add_linking_library"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    build._make_machine_code_of("some.module", "kernel")

    class About:
        modname, qualname = "some.module", "kernel"

    class Callee:
        modname, qualname = "some.module", "callee"

    for about in (About, Callee):
        CPUContext.create_cpython_wrapper(None, None, about, None)
        CPUContext.create_cfunc_wrapper(None, None, about, None)
    assert wrapped == ["kernel", "kernel"]
