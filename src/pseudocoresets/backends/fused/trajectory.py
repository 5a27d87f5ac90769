"""The coreset's descent and the adjoint of it, in blocks of steps that are one CUDA graph each.

    v_{t+1}     = mu v_t + g(theta_t; x_t),      theta_{t+1} = theta_t - eta P v_{t+1},      g = grad_theta U
    q_t         = P lambda_{t+1} + mu q_{t+1}
    D_t[f]      = [f(theta_t + h q_t) - f(theta_t - h q_t)] / (2 h)
    lambda_t    = lambda_{t+1} - eta D_t[g],     dL/dx_t = - eta D_t[grad_x U]

and dL/dy_t like dL/dx_t, for soft labels. D_t is the derivative along the pull q_t by central differences, exact to
second order in h: two gradients per step in place of second derivatives. Several chains see the same images, each with
a lambda and an h of its own; dL/dx_t is their sum. All gradients of a step are computed as one wide network.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pseudocoresets.backends.fused.adjoint import probe_places, pull_back, set_probes
from pseudocoresets.backends.fused.capture import captured
from pseudocoresets.backends.fused.chains import aligned_rows, replay
from pseudocoresets.backends.fused.convnet import EnergyGradient
from pseudocoresets.backends.fused.first_block import empty_patches
from pseudocoresets.backends.fused.head import update
from pseudocoresets.backends.fused.layout import Layout
from pseudocoresets.core.state import AdjointState, Motion


class BlockAdjoint(NamedTuple):
    """What one block of the adjoint gives: its state before the block, dL/deta, and dL/dx_t and dL/dy_t by step."""

    before: AdjointState
    images: Tensor
    step_size: Tensor
    labels: Tensor | None


class CapturedTrajectory:
    """Blocks of ``steps`` steps of ``chains`` parameter sets on the same ``images`` images, forwards and backwards."""

    def __init__(
        self,
        layout: Layout,
        image_shape: tuple[int, int, int],
        chains: int,
        images: int,
        steps: int,
        soft_labels: bool,
        device: torch.device,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.steps = steps
        self.ran: tuple[object, int] | None = None
        """The name of the descent whose block ``forwards`` ran last, and which; a name keeps no memory."""
        wide, probes = layout.widened(chains), layout.widened(2 * chains)
        self._layout = wide
        self._places = probe_places(wide, probes)
        channels, height, width = image_shape
        float32 = torch.float32
        self._theta, self._velocity, self._gradient, self._adjoint, self._pull = (
            aligned_rows(1, wide.size, device, float32)[0] for _ in range(5)
        )
        self._compact = aligned_rows(1, wide.size, device, dtype)[0]
        self._speeds = torch.ones_like(self._theta)
        self._path = aligned_rows(steps + 1, wide.size, device, float32)
        self._probes, self._probe_gradients = (aligned_rows(1, probes.size, device, float32)[0] for _ in range(2))
        self._compact_probes = aligned_rows(1, probes.size, device, dtype)[0]
        self._patches = empty_patches(layout, steps, images, device=device, dtype=dtype)
        self._dx = torch.zeros(steps, images, channels, height, width, device=device)
        label_shape = (steps, images, layout.classes) if soft_labels else (steps, images)
        self._y = torch.zeros(label_shape, device=device, dtype=float32 if soft_labels else torch.int64)
        self._dy = torch.zeros_like(self._y) if soft_labels else None
        self._factors = torch.zeros(steps, images, device=device)
        self._energies = torch.zeros(images * chains, device=device)
        self._differences = torch.zeros(steps, images * 2 * chains, device=device)
        self._rates, self._spacings = torch.zeros(4, device=device), torch.ones(2 * chains, device=device)
        self._seeds = torch.zeros(1, device=device, dtype=torch.int64)
        self._dstep = torch.zeros((), device=device)
        self._descent = EnergyGradient(wide, images, device, dtype)
        self._difference = EnergyGradient(probes, images, device, dtype)
        self._forwards, self._backwards = self._capture()

    def set_rates(self, step_size: Tensor, decay: float, momentum: float = 0.0, speeds: Tensor | None = None) -> None:
        """The step size eta (on the device), the prior's decay, mu, and the P of all chains (size,), 1 if none."""
        self._rates.zero_()
        self._rates[0].copy_(step_size.detach())
        self._rates[1].fill_(decay)
        self._rates[3].fill_(momentum)
        if speeds is None:
            self._speeds.fill_(1)
        else:
            self._speeds.copy_(speeds.flatten().repeat(self._layout.chains)[self._layout.order])

    def forwards(self, start: Motion, x: Tensor, y: Tensor, factors: Tensor) -> Motion:
        """Chains after a block from ``start`` on images (steps, images, channels, height, width).

        Labels and factors w_i / n are those of each step's images, (steps, images) and the classes of soft labels.
        """
        self._theta.copy_(start.position.flatten()[self._layout.order])
        self._velocity.copy_(start.velocity.flatten()[self._layout.order])
        self._compact.copy_(self._theta)
        self._patches.fill(x)
        self._y.copy_(y)
        self._factors.copy_(factors)
        replay(self._forwards, self._all_steps)
        return Motion(self._in_order(self._theta, start.position), self._in_order(self._velocity, start.position))

    def backwards(self, state: AdjointState, spacing: Tensor) -> BlockAdjoint:
        """The adjoint of the block that ``forwards`` ran last, with an h = ``spacing`` for each chain."""
        self._adjoint.copy_(state.adjoint.flatten()[self._layout.order])
        self._pull.copy_(state.pull.flatten()[self._layout.order])
        torch.cat([spacing, -spacing], out=self._spacings)
        self._difference.signs.copy_(1 / (2 * self._spacings))
        replay(self._backwards, self._all_adjoint_steps)
        eta = self._rates[0]
        labels = None if self._dy is None else self._dy * -eta
        before = AdjointState(*(self._in_order(each, state.adjoint) for each in (self._adjoint, self._pull)))
        return BlockAdjoint(before, self._dx * -eta, self._dstep.clone(), labels)

    def factor_gradient(self) -> Tensor:
        """dL/ds_i (steps, images) in the factors s_i = w_i / n of the block whose adjoint was found last.

        Its differences are those of s_i cross-entropy_i; where s_i is zero, so is this.
        """
        differences = self._differences.view(*self._factors.shape, -1).sum(-1)
        return -self._rates[0] * differences / self._factors.where(self._factors != 0, torch.inf)

    def _in_order(self, values: Tensor, like: Tensor) -> Tensor:
        """A copy in the network's order."""
        return values[self._layout.inverse].view_as(like)

    def _step(self, step: int) -> None:
        self._path[step].copy_(self._theta)
        self._descent.accumulate(
            self._theta,
            self._compact,
            self._patches.at(step),
            self._y[step],
            self._factors[step],
            self._gradient,
            self._energies,
        )
        update(self._theta, self._velocity, self._gradient, self._compact, self._speeds, self._rates, self._seeds, step)

    def _adjoint_step(self, step: int) -> None:
        """One step back; ``_dx`` and ``_dy`` get what is still to be multiplied by -eta."""
        theta, following = self._path[step], self._path[step + 1]
        set_probes(
            theta, self._pull, self._spacings, self._places, self._probes, self._compact_probes, self._probe_gradients
        )
        self._difference.accumulate(
            self._probes,
            self._compact_probes,
            self._patches.at(step),
            self._y[step],
            self._factors[step],
            self._probe_gradients,
            self._differences[step],
            self._dx[step],
        )
        if self._dy is not None:
            self._dy[step] = self._difference.label_gradient()
        pull_back(
            theta,
            following,
            self._adjoint,
            self._pull,
            self._speeds,
            self._rates,
            self._probe_gradients,
            self._places,
            self._dstep,
        )

    def _all_steps(self) -> None:
        for step in range(self.steps):
            self._step(step)
        self._path[self.steps].copy_(self._theta)

    def _all_adjoint_steps(self) -> None:
        self._dstep.zero_()
        for step in reversed(range(self.steps)):
            self._adjoint_step(step)

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph]:
        with torch.no_grad():
            return (
                captured(self._all_steps, lambda: self._step(0)),
                captured(self._all_adjoint_steps, lambda: self._adjoint_step(0)),
            )
