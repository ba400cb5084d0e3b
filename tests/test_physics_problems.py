"""The problems whose oracles solve equations: gradients, knobs, references, and runs in the engine."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import targetopt as to
from targetopt.lab import Experiment, Store, expand, problems
from targetopt.lab.problems.physics import beams, inversion
from targetopt.lab.problems.physics.fields import FIELDS, Bounded, Density, field
from targetopt.lab.problems.physics.pixels import converged, moving_asymptotes
from targetopt.lab.problems.physics.sparse import SolverFailed
from targetopt.lab.problems.physics.structures import Structure
from targetopt.lab.run.job import Job, perform
from targetopt.types import BadArgument

BEAMS = {"mbb-beam": "mbb", "cantilever": "cantilever", "bridge": "bridge"}
NAMES = [*BEAMS, "conductivity", "waveform"]
F64 = torch.float64


def along(function, z, d):
    """The derivative along ``d``, by Richardson's extrapolation of central differences."""

    def central(h):
        return (function(z + h * d) - function(z - h * d)) / (2 * h)

    return (4 * central(5e-4) - central(1e-3)) / 3


@pytest.mark.parametrize("name", NAMES)
def test_gradients_agree_with_differences(name):
    """In the targets, at the field that an untrained network gives; the mean convention divides by n."""
    problem = problems.get(name, size="smoke")
    z = torch.from_numpy(problem.field(problem.model(3)))
    d = 0.1 * torch.randn(z.shape, dtype=F64, generator=torch.Generator().manual_seed(0))
    point = problem.oracle().query(z)
    expected = along(lambda z: float(problem.oracle().query(z).loss), z, d)
    assert float(point.gradients @ d) / len(z) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", FIELDS)
def test_the_whole_chain_agrees_with_differences(kind):
    """From the parameters through network, volume, filter and solver."""
    problem = problems.get("cantilever", size="smoke", model=kind)
    net = problem.model(0)
    parameters = torch.nn.utils.parameters_to_vector(net.parameters()).detach()
    d = torch.randn(parameters.shape, dtype=F64, generator=torch.Generator().manual_seed(1))
    d *= 0.3 / d.norm()

    def loss(vector):
        torch.nn.utils.vector_to_parameters(vector, net.parameters())
        return problem.metrics(net)["loss"]

    expected = along(loss, parameters, d)
    torch.nn.utils.vector_to_parameters(parameters, net.parameters())
    z = problem.forward(net)()
    point = problem.oracle().query(z.detach())
    slopes = torch.autograd.grad((point.gradients * z).sum() / len(z), list(net.parameters()))
    found = float(torch.cat([s.reshape(-1) for s in slopes]) @ d)
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("scale", "volume"), [(1e-3, 0.5), (1.0, 0.05), (30.0, 0.9), (1e4, 0.3)])
def test_the_volume_is_kept_whatever_the_network_says(scale, volume):
    density = Density((9, 6), Structure(9, 6, radius=2.2).kernel, volume)
    y = scale * torch.randn(54, dtype=F64, generator=torch.Generator().manual_seed(0))
    x = density(y)
    assert float(x.mean()) == pytest.approx(volume, abs=1e-9)
    assert bool(((x >= 0) & (x <= 1)).all())
    torch.testing.assert_close(density(y + 5.0), x, rtol=1e-9, atol=1e-9)  # shifts change nothing


def test_the_filter_in_torch_is_the_filter_of_the_structure():
    structure = Structure(9, 6, radius=2.6)
    density = Density((9, 6), structure.kernel, 0.4)
    x = torch.rand(54, dtype=F64, generator=torch.Generator().manual_seed(0))
    filtered = density._convolved(x) / density.sums
    np.testing.assert_allclose(filtered.numpy(), structure.cone @ x.numpy(), rtol=1e-12)


def test_noise_is_of_the_stated_size_and_the_same_for_the_same_question():
    exact = problems.get("mbb-beam", size="smoke")
    z = torch.from_numpy(exact.field(exact.model(0)))
    true = exact.oracle().query(z)
    errors = []
    for seed in range(40):
        oracle = problems.get("mbb-beam", size="smoke", noise=0.05, seed=seed).oracle()
        point = oracle.query(z)
        errors.append(float(point.loss / true.loss) - 1.0)
        assert torch.equal(point.gradients, oracle.query(z).gradients)
        away = (point.gradients - true.gradients).norm() / true.gradients.norm()
        assert float(away) == pytest.approx(0.05, rel=0.3)
    assert np.std(errors) == pytest.approx(0.05, rel=0.3)
    assert len(set(errors)) == 40
    # what is measured is exact
    noisy = problems.get("mbb-beam", size="smoke", noise=0.05)
    assert noisy.metrics(exact.model(0)) == exact.metrics(exact.model(0))


def test_the_cost_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)
    problem = problems.get("conductivity", size="smoke", cost=3.5)
    problem.oracle().query(torch.ones(256, dtype=F64))
    problem.metrics(problem.model(0))  # measuring is not asking
    assert waited == [3.5]


@pytest.mark.parametrize("name", BEAMS)
def test_the_reference_of_a_beam_is_what_a_pixel_method_reaches(name):
    problem = problems.get(name, size="smoke")
    case = BEAMS[name]
    found = converged(moving_asymptotes(beams.structure(case, "smoke"), beams.VOLUMES[case]))
    reference = problem.reference()
    assert found[-1].compliance == pytest.approx(reference.value, rel=1e-5)
    assert not reference.resolved
    assert 0 < reference.value - reference.gap < reference.value


@pytest.mark.slow
@pytest.mark.parametrize("size", ["quick", "full"])
@pytest.mark.parametrize("case", beams.MESHES)
def test_the_references_of_larger_beams(case, size):
    mesh = beams.MESHES[case][size]
    most = 600 if "600" in mesh.by else 2000
    found = converged(
        moving_asymptotes(beams.structure(case, size), beams.VOLUMES[case]), most=most
    )
    assert found[-1].compliance == pytest.approx(mesh.best, rel=1e-5)


@pytest.mark.parametrize("name", ["conductivity", "waveform"])
def test_the_reference_of_an_inversion_is_the_level_of_the_noise(name):
    problem = problems.get(name, size="smoke")
    assert 0.4 < problem.reference().value < 0.8
    assert problem.level == inversion.STOPPING_LEVEL == pytest.approx(0.605)


@pytest.mark.parametrize("name", NAMES)
def test_a_short_run_improves_and_measures(name):
    problem = problems.get(name, size="smoke")
    net = problem.model(0)
    before = problem.metrics(net)
    opt = to.SSO(net.parameters(), rule=to.TrustRegion(to.Secant()), inner=to.LBFGS(max_steps=5))
    for _ in range(4):
        opt.step(problem.forward(net), problem.oracle())
    opt.rewind()
    after = problem.metrics(net)
    assert after["loss"] < 0.8 * before["loss"]
    wanted = {"volume", "grey"} if name in BEAMS else {"error"}
    assert set(after) == {"loss", *wanted}
    assert problem.expensive


def test_networks_that_have_diverged_are_measured_as_such():
    problem = problems.get("waveform", size="smoke")
    net = problem.model(0)
    with torch.no_grad():
        next(net.parameters()).fill_(math.nan)
    assert problem.metrics(net) == {"loss": math.inf}
    with pytest.raises(SolverFailed):
        problem.oracle().query(torch.full((256,), math.nan, dtype=F64))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: problems.get("mbb-beam", size="huge"), "size='huge'"),
        (lambda: problems.get("waveform", size="huge"), "size='huge'"),
        (lambda: problems.get("bridge", size="smoke", model="gpt"), "model='gpt'"),
        (lambda: problems.get("bridge", size="smoke", noise=-1.0), "noise=-1.0"),
        (lambda: problems.get("conductivity", size="smoke", cost=math.inf), "cost=inf"),
        (lambda: problems.get("conductivity", size="smoke", noise=0.0), "noise=0.0"),
        (lambda: field("gpt", (3, 3)), "model='gpt'"),
        (lambda: Density((3, 3), np.ones((1, 1)), 1.0), "volume=1.0"),
        (lambda: Bounded(0.5), "spread=0.5"),
    ],
)
def test_bad_options(make, message):
    with pytest.raises(BadArgument, match=message):
        make()


FLOATING = """\
from targetopt.lab.problems.physics import beams, structures
from targetopt.lab.problems import register
import numpy as np

structures.CASES.setdefault(
    "floating", lambda x, y: structures.Case(np.array([], dtype=int), structures.cantilever(x, y).forces)
)
beams.MESHES.setdefault("floating", beams.MESHES["cantilever"])
beams.VOLUMES.setdefault("floating", 0.4)

@register("floating", "a plate that nothing holds")
def floating():
    return beams._problem("floating", "floating", "smoke", "siren", 0.0, 0.0, 0)
"""

SPEC = """\
plugins = ["floating.py"]
seeds = 1
epochs = 2

[[problems]]
name = "floating"

[[problems]]
name = "cantilever"
size = "smoke"

[[methods]]
name = "sso"
rule = ["trust-region", "majoriser"]
inner = "lbfgs"
m = 3

[[methods]]
name = "adam"
"""


def test_a_singular_mesh_is_a_failed_run_and_stops_no_other(tmp_path: Path):
    (tmp_path / "floating.py").write_text(FLOATING)
    (tmp_path / "spec.toml").write_text(SPEC)
    try:
        experiment = Experiment.read(tmp_path / "spec.toml")
        store = Store(tmp_path / "out")
        store.prepare()
        ended = {}
        for config in expand(experiment):
            job = Job(str(store.directory), config.id, config, attempt=1, command="")
            perform(job, stop=lambda: False, tell=lambda event: None)
            manifest = store.manifest(config.id)
            ended[config.problem["name"], config.method.label()] = manifest
    finally:
        problems.unregister("floating")
        del beams.MESHES["floating"], beams.VOLUMES["floating"]
    assert {(name, manifest["status"]) for (name, _), manifest in ended.items()} == {
        ("floating", "failed"),
        ("cantilever", "done"),
    }
    for (name, _), manifest in ended.items():
        if name == "floating":
            assert "SolverFailed" in manifest["reason"]
            assert "not held" in manifest["reason"]
