"""The same run gives the same bits, whether its kernels were just compiled or come from the cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

FITS = """
import hashlib
import numpy as np, scipy.sparse as sp
import targetopt as to
from targetopt.linear import baselines

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
            found = to.linear.fit(X, y, loss=loss, batch_size=batch_size, epochs=20, lr=0.05, **method)
            print(method, loss, batch_size, hashlib.sha256(found.theta.tobytes()).hexdigest())
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
    assert len(first) == (6 + 6 * 3) * 4
    assert [a for a, b in zip(first, second, strict=True) if a != b] == []
