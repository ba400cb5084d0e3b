"""The spin chain: a simulator that agrees with matrices, exact slopes, shots as noise, a known L."""

import numpy as np
import pytest
import torch
from scipy.linalg import expm

import targetopt as to
from targetopt.lab import problems
from targetopt.lab.problems.circuit import Circuit

X, Y = np.array([[0, 1], [1, 0]]), np.array([[0, -1j], [1j, 0]])
Z = np.diag([1.0, -1.0])


def on(qubit: int, gate: np.ndarray, qubits: int) -> np.ndarray:
    """A gate of one qubit as a matrix of all of them."""
    whole = np.eye(1)
    for k in range(qubits):
        whole = np.kron(whole, gate if k == qubit else np.eye(2))
    return whole


def test_states_and_energies_are_those_of_matrices() -> None:
    qubits, layers, field = 3, 2, 0.7
    circuit = Circuit(qubits, layers)
    angles = np.random.default_rng(0).normal(size=(2, circuit.angles))
    down = (np.eye(2) - Z) / 2
    joined = np.eye(2**qubits)
    for q in range(qubits - 1):  # CZ = 1 − 2 |11⟩⟨11|
        joined = joined @ (np.eye(2**qubits) - 2 * on(q, down, qubits) @ on(q + 1, down, qubits))
    energy = -sum(on(q, Z, qubits) @ on(q + 1, Z, qubits) for q in range(qubits - 1))
    energy = (energy - field * sum(on(q, X, qubits) for q in range(qubits))) / qubits
    np.testing.assert_allclose(circuit.hamiltonian(field), energy, atol=1e-15)
    for row in angles:
        psi = np.eye(2**qubits)[0].astype(complex)
        for layer in range(layers + 1):
            psi = psi if layer == 0 else joined @ psi
            for q in range(qubits):
                psi = on(q, expm(-0.5j * row[layer * qubits + q] * Y), qubits) @ psi
        np.testing.assert_allclose(circuit.states(row[None])[0], psi, atol=1e-13)
        found = circuit.energies(row[None], np.array([field]), 0, np.random.default_rng(0))
        np.testing.assert_allclose(found, (psi.conj() @ energy @ psi).real, atol=1e-13)


def test_slopes_are_those_of_finite_differences_and_curvature_stays_below_l() -> None:
    problem = problems.get("spin-chain", size="smoke")
    z = 2 * torch.randn(problem.n, problem.circuit.angles, dtype=torch.float64)
    point, step = problem.oracle().query(z), 1e-5
    hessian = np.empty((problem.n, z.shape[1], z.shape[1]))
    for j in range(z.shape[1]):
        moved = torch.zeros_like(z)
        moved[:, j] = step
        up, down = (problem.oracle().query(z + sign * moved) for sign in (1, -1))
        np.testing.assert_allclose(
            point.gradients[:, j], (up.losses - down.losses) / (2 * step), atol=1e-9
        )
        hessian[:, j] = (up.gradients - down.gradients) / (2 * step)
    assert np.abs(np.linalg.eigvalsh(hessian)).max() <= problem.smoothness
    assert point.smoothness == problem.smoothness


def test_shots_are_noise_around_the_exact_energies_and_a_question_has_one_answer() -> None:
    exact, noisy = (problems.get("spin-chain", size="smoke", shots=s) for s in (0, 400))
    z = torch.randn(exact.n, exact.circuit.angles, dtype=torch.float64)
    first = noisy.oracle().query(z)
    assert torch.equal(first.gradients, noisy.oracle().query(z).gradients)
    right = exact.oracle().query(z)
    many = [noisy.oracle().query(z + 1e-12 * k) for k in range(60)]
    for name in ("losses", "gradients"):
        found = torch.stack([getattr(each, name) for each in many])
        error = found.mean(dim=0) - getattr(right, name)
        assert (error.abs() < 5 * found.std(dim=0) / 60**0.5 + 1e-9).all()
        assert found.std(dim=0).max() > 0
    assert noisy.metrics(noisy.model(0)) == exact.metrics(exact.model(0))


def test_no_circuit_goes_below_the_smallest_eigenvalue_and_sso_comes_near_it() -> None:
    problem = problems.get("spin-chain", size="smoke")
    model = problem.model(0)
    opt = to.SSO(model.parameters(), inner=to.LBFGS("auto", stopping=to.Stopping(price=100.0)))
    begin = problem.metrics(model)["gap"]
    for _ in range(12):
        opt.step(problem.forward(model), problem.oracle())
    end = problem.metrics(model)["gap"]
    assert 0 <= end < 0.1 * begin
    assert problem.metrics(model)["loss"] >= problem.reference().value


@pytest.mark.parametrize("options", [{"shots": -1}, {"shots": 1.5}, {"size": "huge"}])
def test_bad_options_are_refused(options: dict) -> None:
    with pytest.raises(to.TargetoptError, match=r"shots|size"):
        problems.get("spin-chain", **options)
