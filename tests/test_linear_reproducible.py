"""The same run gives the same bits, whether its kernels were just compiled or come from the cache."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import scipy.sparse as sp

import targetopt as to
from targetopt.linear import backend

pytest.importorskip("numba")

FITS = """
import hashlib
import numpy as np, scipy.sparse as sp
import targetopt as to
from targetopt.linear import baselines

def show(X, y, **options):
    found = to.linear.fit(X, y, **options)
    print(options, hashlib.sha256(found.theta.tobytes()).hexdigest())

rng = np.random.default_rng(0)
X, y = sp.random_array((300, 60), density=0.2, rng=rng, format="csr"), np.sign(rng.normal(size=300))
methods = [dict(baseline=b()) for b in vars(baselines).values()
           if isinstance(b, type) and issubclass(b, baselines.Baseline) and b is not baselines.Baseline]
methods += [dict(rule=rule(), inner=inner)
            for rule in (to.GradientStep, to.LineSearch, to.AdaGrad, to.AdaGradNorm, to.Newton, to.FTRL)
            for inner in (to.Armijo(max_steps=30), to.LBFGS(max_steps=5), to.Exact())]
for method in methods:
    for loss in (to.losses.Squared, to.losses.Logistic):
        for batch_size in (20, None):
            show(X, y, loss=loss, batch_size=batch_size, epochs=20, lr=0.05, **method)

# Many steps in a Krylov space, on all rows: what a last bit is lost in is seen here first.
tall = (rng.random((4000, 110)) < 0.2).astype(float)
labels = np.sign(tall @ rng.normal(size=110))
for rule in (to.GradientStep, to.LineSearch):
    show(sp.csr_array(tall), labels, rule=rule(), inner=to.Armijo(max_steps=100), epochs=100)
"""


@pytest.mark.slow  # everything is compiled anew
def test_compiling_and_loading_give_the_same_bits(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (
        subprocess.run(
            [sys.executable, "-c", FITS],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for _ in range(2)
    )
    assert len(first) == (6 + 6 * 3) * 4 + 2
    assert [a for a, b in zip(first, second, strict=True) if a != b] == []


def callees(dispatcher) -> set[bytes]:
    """Names, with the compiler's number, of the kernels in what numba keeps of an entry point."""
    function = dispatcher.py_func
    stem = f"{function.__module__.split('.')[-1]}.{function.__qualname__}-"
    kept = Path(dispatcher.stats.cache_path).glob(f"{stem}*.nbc")
    found = (
        re.findall(rb"targetopt6linear7kernels\w+?B\d+v\d+", file.read_bytes()) for file in kept
    )
    return set().union(*found)


def test_no_two_entry_points_share_the_name_of_a_callee() -> None:
    """Otherwise the one that is loaded first would lend its callees to the other."""
    from targetopt.linear.kernels.data import csr
    from targetopt.linear.kernels.runs import baselines, sso

    X, y = sp.eye_array(3, format="csr"), [1, -1, 1]
    with backend.use("numba"):
        to.linear.fit(X, y, epochs=1)
        to.linear.fit(X, y, epochs=1, baseline=to.linear.baselines.SGD(), lr=1.0)
    names = [callees(entry) for entry in (csr._matvec, csr._add_rmatvec, sso.run, baselines.run)]
    assert all(names)
    assert len(names[2]) > 20
    assert len(set().union(*names)) == sum(map(len, names))
