"""States, schedules, scales and kernel caches that are damaged or out of range: clear errors, nothing worse."""

from __future__ import annotations

import copy
import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import targetopt as to
from targetopt.linear import Run, backend, fit
from targetopt.types import BadArgument

BACKENDS = backend.available()


def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5))
    return X, np.sign(X @ rng.normal(size=5) + rng.normal(size=60))


METHODS = {
    "sso": {"rule": to.AdaGrad(), "inner": to.Armijo(max_steps=3)},
    "line-search": {"rule": to.LineSearch(), "inner": to.LBFGS(max_steps=3)},
    "sls": {"baseline": to.linear.baselines.SLS(), "lr": 1.0},
    "adam": {"baseline": to.linear.baselines.Adam(), "lr": 0.1},
}


def spoilt(value):
    """Ways in which an array of a state can be wrong."""
    array = np.asarray(value)
    yield np.zeros(1, array.dtype)
    yield np.zeros((*array.shape, 2), array.dtype)
    yield np.full(array.shape, "1")
    yield "nothing"
    yield None
    yield np.ones(array.shape, bool)
    yield np.ones(array.shape, np.int64 if array.dtype.kind == "f" else np.float64)
    if array.size:
        for number in (np.inf, -np.inf) if array.dtype.kind == "f" else (-1, 2**63 - 1):
            wrong = array.copy()
            wrong.flat[-1] = number
            yield wrong


@pytest.mark.parametrize("which", BACKENDS)
@pytest.mark.parametrize("method", METHODS)
def test_every_part_of_a_state_is_checked_before_it_reaches_a_kernel(which, method):
    X, y = data()
    with backend.use(which):
        run = Run(X, y, batch_size=10, **METHODS[method])
        run.advance(7)
        state = run.state_dict()
        for name, value in state.items():
            if isinstance(value, dict):
                continue
            missing = {key: part for key, part in state.items() if key != name}
            with pytest.raises(BadArgument):
                run.load_state_dict(missing)
            for wrong in spoilt(value) if name != "steps" else (-1, 1.5, "two", None, True):
                with pytest.raises(BadArgument, match=name):
                    run.load_state_dict({**copy.deepcopy(state), name: wrong})
        run.advance(3)  # what was refused has left the run as it was
        expected = fit(X, y, batch_size=10, steps=10, **METHODS[method])
        again = Run(X, y, batch_size=10, **METHODS[method])
        as_tensors = {
            key: part if isinstance(part, dict | int) else torch.as_tensor(part)
            for key, part in state.items()
        }
        again.load_state_dict(as_tensors)
        again.advance(3)
    np.testing.assert_array_equal(run.theta, expected.theta)
    np.testing.assert_array_equal(again.theta, expected.theta)
    assert run.counts == again.counts == expected.counts


def test_a_state_of_the_other_engine_is_refused():
    if len(BACKENDS) == 1:
        pytest.skip("numba is not installed")
    X, y = data()
    method = METHODS["sso"]
    for one, other in (BACKENDS, BACKENDS[::-1]):
        with backend.use(one):
            state = fit(X, y, steps=2, **method).state
        with backend.use(other), pytest.raises(BadArgument, match=r"numba|compiled"):
            fit(X, y, steps=2, state=state, **method)


@pytest.mark.parametrize("which", BACKENDS)
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "fast", None, True])
@pytest.mark.parametrize("method", ["sso", "adam"])
def test_schedules_are_checked_as_sso_checks_them(which, value, method):
    X, y = data()
    schedule = lambda t: value if t == 3 else 1.0  # noqa: E731
    with backend.use(which), pytest.raises(BadArgument, match=r"t = 3.*must be ≥ 0"):
        fit(X, y, epochs=3, batch_size=10, schedule=schedule, **METHODS[method])
    weight = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    opt = to.SSO([weight], lr=1.0, schedule=lambda t: value)
    with pytest.raises(BadArgument, match="must be ≥ 0"):
        opt.step(to.Linear(weight, X), to.losses.Logistic(torch.tensor(y)))


@pytest.mark.parametrize("scale", [1e160, 1e-200])
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_features_whose_squares_overflow_or_vanish_are_refused(scale, convert):
    X, y = data()
    with pytest.raises(BadArgument, match="Rescale the features"):
        fit(convert(X * scale), y, epochs=1)
    fit(convert(X * 0.0), y, epochs=1)


def test_labels_whose_squares_overflow_are_refused():
    X, y = data()
    with pytest.raises(BadArgument, match="1e\\+300"):
        fit(X, 1e300 * y, loss=to.losses.Squared, epochs=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, "seed=-1"),
        ({"seed": 0.5}, "seed=0.5"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"weight_decay": "much"}, "weight_decay='much'"),
        ({"lr": "theory"}, "lr='theory'"),
        ({"schedule": 0.5}, "schedule=0.5"),
        ({"baseline": to.linear.baselines.SGD, "lr": 0.1}, "parentheses"),
    ],
)
def test_arguments_that_are_no_numbers(change, message):
    X, y = data()
    with pytest.raises(BadArgument, match=message):
        fit(**{"X": X, "y": y, "epochs": 1, **change})


KERNEL = """
import os
import sys
import numpy as np
from targetopt.linear.kernels.data import csr
from targetopt.linear.kernels.compiler.jit import scalar_address
from targetopt.losses import Squared

for line in sys.stdin:  # each use by a process that has used none, with the imports behind it
    child = os.fork()
    if child == 0:
        out, rows = np.zeros(2), (np.array([0, 1, 2]), np.array([0, 1], np.int32))
        csr._matvec(*rows, np.array([2.0, 3.0]), np.ones(2), out)
        assert out.tolist() == [2.0, 3.0]
        assert scalar_address(Squared.scalar.slope, 2) > 0
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(1)
    print("used", flush=True)
"""


def damaged(files):
    """One of each function's files with a byte turned over, and the other cut short."""
    for place, (path, content) in enumerate(sorted(files.items())):
        middle = len(content) // 2
        turned = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes(content[:40] if place % 2 else turned)


@pytest.mark.skipif("numba" not in BACKENDS, reason="numba is not installed")
def test_damaged_machine_code_is_compiled_anew_and_right(tmp_path, monkeypatch):
    """What this process compiles; the long lane has what other processes compile."""
    from numba.core import config

    from targetopt.linear.kernels.compiler import jit

    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))

    def run():
        monkeypatch.setattr(jit, "_scalars", {})  # as in a process that has used none
        address = jit.scalar_address(to.losses.Squared.scalar.slope, 2)
        assert ctypes.CFUNCTYPE(*[ctypes.c_double] * 3)(address)(3.0, 1.0) == 2.0
        return {path: path.read_bytes() for path in tmp_path.rglob("*.nb[ic]")}

    whole = run()
    assert len(whole) == 2
    damaged(whole)
    mended = run()
    assert mended.keys() == whole.keys()
    assert all(len(content) > 40 for content in mended.values())
    assert run() == mended


@pytest.mark.slow  # four kernels are compiled, by a process for each
@pytest.mark.skipif("numba" not in BACKENDS, reason="numba is not installed")
def test_a_damaged_kernel_cache_mends_itself(tmp_path):
    """Cut short by a power cut, or with a byte turned over: compiled again, and right."""
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    user = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", KERNEL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )

    def run():
        user.stdin.write("use\n")
        user.stdin.flush()
        if user.stdout.readline() != "used\n":
            pytest.fail(user.communicate()[1])
        return {path: path.read_bytes() for path in Path(tmp_path).rglob("*.nb[ic]")}

    with user:
        whole = run()
        assert len(whole) == 4  # an index and the machine code of each
        damaged(whole)
        mended = run()
        assert mended.keys() == whole.keys()
        assert all(mended[path][:32] != b"" and len(mended[path]) > 40 for path in mended)
        assert run() == mended  # and read from then on


@pytest.mark.skipif("numba" not in BACKENDS, reason="numba is not installed")
def test_machine_code_of_other_sources_is_not_used(tmp_path, monkeypatch):
    from targetopt.linear.kernels.compiler import cache

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))

    def stamp():
        cache.digest_of_sources.cache_clear()
        return cache.CheckedCache(data, with_kernels=True)._cache_file._source_stamp

    before = stamp()
    assert stamp() == before
    monkeypatch.setattr(cache, "ROUNDING", 9.0)  # a constant that is compiled in
    assert stamp() != before
    monkeypatch.undo()
    cache.digest_of_sources.cache_clear()


@pytest.mark.skipif("numba" not in BACKENDS, reason="numba is not installed")
def test_an_index_that_names_what_an_earlier_version_had_is_not_used(tmp_path, monkeypatch):
    """The signatures in an index hold classes by name, and a later version may have renamed them."""
    from targetopt.linear.kernels import arguments
    from targetopt.linear.kernels.compiler import cache

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    file = cache.CheckedCache(data, with_kernels=True)._cache_file
    old = type("Gone", (), {"__module__": arguments.__name__})
    monkeypatch.setattr(arguments, "Gone", old, raising=False)
    Path(file._index_path).parent.mkdir(parents=True, exist_ok=True)
    file._save_index({old: "machine code"})
    assert file._load_index() == {old: "machine code"}
    monkeypatch.delattr(arguments, "Gone")
    assert file._load_index() == {}
