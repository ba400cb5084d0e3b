"""The suite: what is solved, what a call of the oracle is, and the budgets."""

from targetopt.lab.studies.oracles.arms import HALF_DECADE, Arm, Tune, spaced
from targetopt.lab.studies.oracles.suite import Task, add, calls

STEPS = Tune("lr", spaced(1e-4, HALF_DECADE, 7))
POOL = Arm("Adam with a pool", {"name": "solution-pool"}, "trick", STEPS, needs=frozenset({"pool"}))
BOUGHT = Arm(
    "Adam on everything bought", {"name": "bought"}, "trick", STEPS, needs=frozenset({"revealed"})
)
NEWEST = Arm(
    "newest batch alone",
    {"name": "sso-auto", "rule": "proximal"},
    "ablation",
    needs=frozenset({"revealed"}),
)
MAJORISER = Arm(
    "SSO with the solver's own bound", {"name": "sso-auto", "rule": "majoriser"}, "rule"
)
FREE = Arm("free training", {"name": "free-attack"}, "trick", STEPS)
FAST = Arm("fast training", {"name": "fast-attack"}, "trick", STEPS)

for name, title in (("mbb-beam", "beam"), ("cantilever", "cantilever"), ("bridge", "bridge")):
    add(
        Task(
            name,
            f"{title}, neural field",
            "one finite element solve",
            {"name": name, "model": "fourier"},
            calls(12, 30, 60),
            tricks=(MAJORISER,),
        )
    )
add(
    Task(
        "mbb-beam-cnn",
        "beam, CNN",
        "one finite element solve",
        {"name": "mbb-beam", "model": "cnn"},
        calls(12, 30, 60),
        tricks=(MAJORISER,),
    )
)
add(
    Task(
        "conductivity",
        "conductivity inversion",
        "one factorisation, two solves a source",
        {"name": "conductivity", "model": "fourier"},
        calls(12, 30, 60),
    )
)
add(
    Task(
        "waveform",
        "wave-form inversion",
        "Helmholtz solves for every frequency",
        {"name": "waveform", "model": "fourier"},
        calls(12, 30, 60),
    )
)
for loss, title in (
    ("spo+", "SPO+"),
    ("fenchel-young", "Fenchel–Young"),
    ("feasibility", "feasibility"),
):
    add(
        Task(
            f"shortest-path-{loss.replace('+', '-plus')}",
            f"shortest path, {title}",
            "a shortest path for every instance",
            {"name": "shortest-path", "loss": loss},
            calls(12, 30, 60),
            tricks=(POOL,),
        )
    )
add(
    Task(
        "knapsack",
        "knapsack, SPO+",
        "a knapsack for every instance",
        {"name": "knapsack", "loss": "spo+"},
        calls(12, 30, 40),
        tricks=(POOL,),
    )
)
add(
    Task(
        "salesman",
        "travelling salesman, SPO+",
        "a tour for every instance",
        {"name": "travelling-salesman", "loss": "spo+"},
        calls(12, 30, 60),
        tricks=(POOL,),
    )
)
add(
    Task(
        "teacher-gradient",
        "distillation, gradients",
        "the teacher's gradient for all images",
        {"name": "distillation", "sells": "gradient"},
        calls(12, 30, 60),
    )
)
add(
    Task(
        "teacher-score",
        "distillation, scores",
        "a few scores for every image",
        {"name": "distillation", "sells": "score"},
        calls(12, 30, 60),
    )
)
for sells in ("probabilities", "top-k"):
    add(
        Task(
            f"teacher-{sells}",
            f"distillation, {sells}, batches",
            f"the teacher's {sells} for one batch",
            {"name": "distillation", "sells": sells},
            calls(4, 4, 10),  # passes over the images; eight batches each, or four in a rehearsal
            batch_size={"smoke": 25, "quick": 50, "full": 100},
            tricks=(BOUGHT, NEWEST),
        )
    )
for name, title, images in (
    ("attack", "adversarial digits", "digits"),
    ("attack-mnist", "adversarial MNIST", "mnist"),
):
    add(
        Task(
            name,
            title,
            "a PGD attack on all images",
            {"name": "adversarial-digits", "images": images},
            calls(8, 30, 60),
            tricks=(FREE, FAST),
        )
    )
add(
    Task(
        "circuit",
        "spin chain, circuit",
        "the circuit at every field and shift",
        {"name": "spin-chain"},
        calls(12, 30, 60),
    )
)
