"""A circuit: a network gives the angles of a small quantum circuit for a whole family of magnets.

Row i is an Ising chain in the transverse field h_i, with the energy H_i = −Σ_q Z_q Z_{q+1} − h_i Σ_q X_q. The circuit
turns every qubit by RY and joins neighbours by CZ, layer after layer; what it ends in has the energy ⟨H_i⟩, and the
loss is that energy for each qubit. A network learns the angles as a function of the field. The oracle prepares the
circuit at the angles and at shifted ones:

    ∂E/∂θ_j = ½ (E(θ + ½π e_j) − E(θ − ½π e_j)),

which is exact for such gates. With ``shots`` energies are means over so many measured bit strings, as on a machine.
The smallest energies are known: they are the smallest eigenvalues.

References: Cervera-Lierta, Kottmann, Aspuru-Guzik, *Meta-variational quantum eigensolver*, 2021; Mitarai et al.,
*Quantum circuit learning*, 2018 (shifted angles); Schuld et al., *Evaluating analytic gradients on quantum hardware*,
2019.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from targetopt.lab.problems.base import Array, Problem, as_rows, rng_of, seeded
from targetopt.lab.problems.registry import register
from targetopt.oracle import GradientOracle, Oracle
from targetopt.reference import Reference
from targetopt.types import BadArgument, Forward

Size = Literal["smoke", "quick", "full"]
FIELDS = (0.2, 2.0)
"""The weakest and the strongest transverse field: the magnet changes its phase at 1."""


class Circuit:
    """An exact simulator of layers of RY and CZ on a chain of qubits, for many settings of the angles at once.

    All amplitudes are real. Angles have the shape ``(rows, (layers + 1) · qubits)``, layer by layer.

    Example:
        >>> circuit = Circuit(qubits=2, layers=0)
        >>> circuit.states(np.array([[np.pi, 0.0]])).round(12)  # the first qubit is turned over
        array([[0., 0., 1., 0.]])
    """

    def __init__(self, qubits: int, layers: int) -> None:
        self.qubits, self.layers = qubits, layers
        bits = (np.arange(2**qubits)[:, None] >> np.arange(qubits - 1, -1, -1)) & 1
        self.spins: Array = (1 - 2 * bits).astype(np.float64)
        pairs = (bits[:, 1:] * bits[:, :-1]).sum(axis=1)
        self.signs: Array = (1 - 2 * (pairs % 2)).astype(np.float64)
        self.aligned: Array = (self.spins[:, 1:] * self.spins[:, :-1]).sum(axis=1)
        self.magnetisation: Array = self.spins.sum(axis=1)

    @property
    def angles(self) -> int:
        return (self.layers + 1) * self.qubits

    def states(self, angles: Array) -> Array:
        """The amplitudes that |0…0⟩ becomes, one row for each row of angles."""
        psi = np.zeros((len(angles), 2**self.qubits))
        psi[:, 0] = 1.0
        for layer in range(self.layers + 1):
            if layer:
                psi = psi * self.signs
            for qubit in range(self.qubits):
                psi = self._turned(psi, qubit, angles[:, layer * self.qubits + qubit])
        return psi

    def _turned(self, psi: Array, qubit: int, angle: Array) -> Array:
        """exp(−½iθY) on one qubit."""
        c, s = np.cos(angle / 2)[:, None, None], np.sin(angle / 2)[:, None, None]
        parts = psi.reshape(len(psi), 2**qubit, 2, -1)
        up, down = parts[:, :, 0], parts[:, :, 1]
        return np.stack([c * up - s * down, s * up + c * down], axis=2).reshape(psi.shape)

    def in_x(self, psi: Array) -> Array:
        """The amplitudes in the basis of X: every qubit turned by −½π."""
        quarter = np.full(len(psi), -np.pi / 2)
        for qubit in range(self.qubits):
            psi = self._turned(psi, qubit, quarter)
        return psi

    def energies(self, angles: Array, fields: Array, shots: int, rng: np.random.Generator) -> Array:
        """⟨H⟩ for each qubit: exactly, or by ``shots`` measurements in each of the two bases."""
        psi = self.states(angles)
        along_z = self._mean(psi**2, self.aligned, shots, rng)
        along_x = self._mean(self.in_x(psi) ** 2, self.magnetisation, shots, rng)
        return -(along_z + fields * along_x) / self.qubits

    @staticmethod
    def _mean(chances: Array, values: Array, shots: int, rng: np.random.Generator) -> Array:
        if not shots:
            found: Array = chances @ values
            return found
        counts: NDArray[Any] = rng.multinomial(shots, chances / chances.sum(axis=1, keepdims=True))
        return np.asarray(counts @ values / shots)

    def hamiltonian(self, field: float) -> Array:
        """H as a matrix, divided by the number of qubits."""
        matrix = np.diag(-self.aligned)
        places = np.arange(2**self.qubits)
        for qubit in range(self.qubits):
            matrix[places, places ^ (1 << qubit)] -= field
        return matrix / self.qubits


class SpinChain(Problem):
    """Angles as a function of the field: rows are fields, targets are angles, losses are energies."""

    expensive = True

    def __init__(self, circuit: Circuit, rows: int, width: int, shots: int, seed: int) -> None:
        self.label = f"spin chain, {circuit.qubits} qubits" + (f", {shots} shots" if shots else "")
        self.circuit, self.width, self.shots, self.seed = circuit, width, shots, seed
        self.fields: Array = np.linspace(*FIELDS, rows)
        self.answers_tell = not shots

    @property
    def n(self) -> int:
        return len(self.fields)

    def model(self, seed: int) -> nn.Module:
        return seeded(
            seed,
            lambda: nn.Sequential(
                nn.Linear(1, self.width),
                nn.Tanh(),
                nn.Linear(self.width, self.width),
                nn.Tanh(),
                nn.Linear(self.width, self.circuit.angles),
            ),
        )

    def forward(self, model: nn.Module, index: ArrayLike | Tensor | None = None) -> Forward:
        fields = torch.from_numpy(self.fields)[:, None]
        x = fields if index is None else fields[as_rows(index)]
        return lambda: model(x)

    def oracle(self, index: ArrayLike | Tensor | None = None) -> Oracle:
        fields = self.fields if index is None else self.fields[as_rows(index).numpy()]
        return GradientOracle(lambda z: self._answer(z, fields), smoothness=self.smoothness)

    def _answer(self, z: Tensor, fields: Array) -> tuple[Array, Array]:
        """Energies, and their slopes by shifted angles; the same question has the same answer."""
        angles = z.numpy()
        rng = rng_of(angles, self.seed)

        def energies(at: Array) -> Array:
            return self.circuit.energies(at, fields, self.shots, rng)

        slopes = np.empty_like(angles)
        for j in range(angles.shape[1]):
            shift = np.zeros(angles.shape[1])
            shift[j] = np.pi / 2
            slopes[:, j] = (energies(angles + shift) - energies(angles - shift)) / 2
        return energies(angles), slopes

    @cached_property
    def _spectra(self) -> Array:
        """The smallest and the largest energy of each row."""
        values = [np.linalg.eigvalsh(self.circuit.hamiltonian(h))[[0, -1]] for h in self.fields]
        return np.array(values)

    @cached_property
    def smoothness(self) -> float:
        """L ≤ p·R/2 for p angles, with R the range of the energies: no second derivative is above R/2.

        ∂²E/∂θ_j∂θ_k = ¼(E₊₊ − E₊₋ − E₋₊ + E₋₋), by shifts of both angles.
        """
        ranges = self._spectra[:, 1] - self._spectra[:, 0]
        return float(self.circuit.angles * ranges.max() / 2)

    def metrics(self, model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            angles = self.forward(model)().numpy()
        exact = self.circuit.energies(angles, self.fields, 0, np.random.default_rng(0))
        return {"loss": float(exact.mean()), "gap": float((exact - self._spectra[:, 0]).mean())}

    def reference(self) -> Reference:
        """The smallest eigenvalues: no circuit goes below, and this one may not get there."""
        lowest = float(self._spectra[:, 0].mean())
        return Reference(lowest, 0.0, False, "the smallest eigenvalue of every Hamiltonian")


@register(
    "spin-chain",
    "a network gives the angles of a small quantum circuit; the oracle measures energies",
)
def spin_chain(size: Size = "quick", shots: int = 0, seed: int = 0) -> SpinChain:
    if type(shots) is not int or shots < 0:
        raise BadArgument(f"shots={shots!r} must be a whole number; 0 computes energies exactly")
    sizes = {"smoke": (3, 1, 6, 8), "quick": (4, 2, 12, 16), "full": (6, 3, 24, 32)}
    if size not in sizes:
        raise BadArgument(f"size={size!r} is unknown. Use one of {', '.join(sizes)}.")
    qubits, layers, rows, width = sizes[size]
    return SpinChain(Circuit(qubits, layers), rows, width, shots, seed)
