"""What each extra is for, used in an environment that has the core and that extra alone.

``QUICK`` is used by every run of the checks, in environments whose packages are links (see ``package.py``);
``WHOLE`` adds what takes longer, and is used where packages come from the index.
"""

from __future__ import annotations

DATA = """
import numpy as np, torch, targetopt as to
rows = np.random.default_rng(0)
X = rows.standard_normal((60, 4))
y = np.sign(X @ rows.standard_normal(4))
"""

QUICK = {
    "fast": """
import numba
from targetopt.linear.kernels.compiler.jit import scalar_address
assert scalar_address(lambda z: z * z, 1) > 0
""",
    "sklearn": DATA
    + """
from targetopt.sklearn import SSOClassifier
assert SSOClassifier().fit(X, y).score(X, y) > 0.9
""",
    "lab": """
import pathlib, tempfile
from targetopt.lab import Experiment, run
if __name__ == "__main__":
    made = Experiment(problems=[{"name": "breast_cancer"}], methods=[{"name": "sso"}, {"name": "adam"}], epochs=2)
    assert run(made, pathlib.Path(tempfile.mkdtemp()), jobs=1).statuses == {"done": 2}
""",
    "remote": """
import torch, targetopt as to
with to.RemoteOracle(lambda z: (0.5 * z**2, z)) as oracle:
    assert oracle.query(torch.ones(3)).gradients.tolist() == [1, 1, 1]
""",
    "ray": "import ray, targetopt as to; to.RayOracle; to.RemoteOracle",
    "trackers": """
import tempfile
from targetopt.lab.run.callbacks import TensorBoard
board = TensorBoard(tempfile.mkdtemp())
board.on_start({"id": "a1b2c3", "seed": 0})
board.on_row({"step": 1, "oracle_calls": 1, "loss": 0.7})
board.on_end({"id": "a1b2c3", "seed": 0, "status": "done"})
""",
    "rl": """
import numpy as np, targetopt as to
to.imitation.train(
    env="Swimmer-v5", expert=lambda states: 0.5 * np.tanh(states[:, 3:5]), rounds=2, states_per_round=50,
    copies=2, evaluation_episodes=1, progress=False,
)
""",
    "decisions": """
from targetopt.lab.problems import get
assert get("shortest-path", size="smoke").n
""",
    "expert": """
import warnings
warnings.simplefilter("ignore")  # what sbx imports warns of itself
import stable_baselines3, sbx, targetopt as to
to.imitation.train_expert
""",
}

WHOLE = {
    "fast": DATA + "to.linear.fit(X, y, batch_size=20, epochs=2)\n",
    "lab": """
import subprocess, sys
if __name__ == "__main__":
    subprocess.run([sys.prefix + "/bin/targetopt", "demo", "--seeds", "1"], check=True)
""",
    "ray": """
import torch, targetopt as to
def factory():
    return lambda z: (0.5 * z**2, z)
with to.RayOracle(factory, workers=1) as oracle:
    assert oracle.query(torch.ones(3)).gradients.tolist() == [1, 1, 1]
""",
    "expert": """
import pathlib, tempfile, targetopt as to
to.imitation.train_expert("Hopper-v5", algorithm="ppo", steps=4096, out=pathlib.Path(tempfile.mkdtemp()))
""",
}
