"""The coreset's descent and the adjoint of it, in blocks of steps that are one CUDA graph each.

    theta_{t+1} = theta_t - eta g(theta_t; x_t),                         g = grad_theta U
    D_t[f]      = [f(theta_t + h lambda_{t+1}) - f(theta_t - h lambda_{t+1})] / (2 h)
    lambda_t    = lambda_{t+1} - eta D_t[g],     dL/dx_t = - eta D_t[grad_x U]

D_t is the derivative along lambda by central differences, exact to second order in h: two gradients a step, side by
side, in place of second derivatives.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pseudocoresets.accelerated.chains import aligned_rows, cudnn_benchmark
from pseudocoresets.accelerated.convnet import EnergyGradient, Layout
from pseudocoresets.accelerated.head import update

SIGNS = (1.0, -1.0)


class BlockAdjoint(NamedTuple):
    """What one block of the adjoint gives: lambda before it, dL/dx_t for each of its steps, and dL/deta."""

    costate: Tensor
    images: Tensor
    step_size: Tensor


class CapturedTrajectory:
    """Blocks of ``steps`` steps of one parameter set on ``images`` images, forwards and backwards."""

    def __init__(
        self,
        layout: Layout,
        image_shape: tuple[int, int, int],
        images: int,
        steps: int,
        soft_labels: bool,
        device: torch.device,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.steps = steps
        self._layout = layout
        channels, height, width = image_shape
        float32 = torch.float32
        self._theta, self._velocity, self._gradient, self._costate = (
            aligned_rows(1, layout.size, device, float32)[0] for _ in range(4)
        )
        self._compact = aligned_rows(1, layout.size, device, dtype)[0]
        self._path = aligned_rows(steps + 1, layout.size, device, float32)
        self._probes, self._slopes = (aligned_rows(2, layout.size, device, float32) for _ in range(2))
        self._compact_probes = aligned_rows(2, layout.size, device, dtype)
        self._x = torch.zeros(steps, images, height, width, channels, device=device, dtype=dtype)
        self._dx = torch.zeros(steps, images, channels, height, width, device=device)
        label_shape = (images, layout.classes) if soft_labels else (images,)
        self._y = torch.zeros(label_shape, device=device, dtype=float32 if soft_labels else torch.int64)
        self._factors, self._energies = torch.zeros(images, device=device), torch.zeros(2, images, device=device)
        self._rates, self._reach = torch.zeros(4, device=device), torch.ones((), device=device)
        self._seeds = torch.zeros(1, device=device, dtype=torch.int64)
        self._dstep = torch.zeros((), device=device)
        self._workspaces = [EnergyGradient(layout, images, device, dtype) for _ in SIGNS]
        self._streams = [torch.cuda.Stream(device) for _ in SIGNS]
        self._forwards, self._backwards = self._capture()

    def set_points(self, y: Tensor, factors: Tensor, step_size: Tensor, decay: float) -> None:
        """Labels, factors w_i / n, the step size eta (on the device) and the prior's decay."""
        self._y.copy_(y)
        self._factors.copy_(factors)
        self._rates.zero_()
        self._rates[0] = step_size.detach()
        self._rates[1] = decay

    def forwards(self, start: Tensor, x: Tensor) -> Tensor:
        """theta after a block from ``start`` on images (steps, images, channels, height, width)."""
        self._theta.copy_(start[self._layout.order])
        self._compact.copy_(self._theta)
        self._x.copy_(x.movedim(2, -1))
        self._forwards.replay()
        return self._path[-1][self._layout.inverse]

    def backwards(self, costate: Tensor, reach: Tensor) -> BlockAdjoint:
        """The adjoint of the block that ``forwards`` ran last, with h = ``reach``."""
        self._costate.copy_(costate[self._layout.order])
        self._reach.copy_(reach)
        self._backwards.replay()
        return BlockAdjoint(self._costate[self._layout.inverse], self._dx.clone(), self._dstep.clone())

    def _step(self, step: int) -> None:
        self._path[step].copy_(self._theta)
        self._workspaces[0].accumulate(
            self._theta,
            self._compact,
            self._images(step),
            self._y,
            self._factors,
            self._gradient,
            self._energies[0],
        )
        update(self._theta, self._velocity, self._gradient, self._compact, self._rates, self._seeds, step)

    def _adjoint_step(self, step: int) -> None:
        main = torch.cuda.current_stream()
        image_slopes: list[Tensor] = []
        for side, (sign, stream) in enumerate(zip(SIGNS, self._streams, strict=True)):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                image_slopes.append(self._probe(side, sign, step))
        for stream in self._streams:
            main.wait_stream(stream)
        eta, decay = self._rates[0], self._rates[1]
        scale = eta / (2 * self._reach)
        torch.mul(image_slopes[1].float() - image_slopes[0].float(), scale, out=self._dx[step])
        self._dstep.sub_(torch.dot(self._path[step] - self._path[step + 1], self._costate) / eta)
        self._costate.mul_(1 - eta * decay).add_((self._slopes[1] - self._slopes[0]) * scale)

    def _probe(self, side: int, sign: float, step: int) -> Tensor:
        """g at theta_t + sign h lambda, without the prior's part; returns the gradient in the images."""
        probe, compact = self._probes[side], self._compact_probes[side]
        torch.addcmul(self._path[step], self._costate, self._reach, value=sign, out=probe)
        compact.copy_(probe)
        self._slopes[side].zero_()
        return self._workspaces[side].accumulate_both(
            probe, compact, self._images(step), self._y, self._factors, self._slopes[side], self._energies[side]
        )

    def _images(self, step: int) -> Tensor:
        return self._x[step].movedim(-1, 1)

    def _all_steps(self) -> None:
        self._velocity.zero_()
        for step in range(self.steps):
            self._step(step)
        self._path[self.steps].copy_(self._theta)

    def _all_adjoint_steps(self) -> None:
        self._dstep.zero_()
        for step in reversed(range(self.steps)):
            self._adjoint_step(step)

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph]:
        """Each after a run of one step that lets Triton compile and cuDNN choose."""
        graphs = []
        with cudnn_benchmark(), torch.no_grad():
            for once, whole in ((self._step, self._all_steps), (self._adjoint_step, self._all_adjoint_steps)):
                warm_up = torch.cuda.Stream()
                warm_up.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(warm_up):
                    once(0)
                torch.cuda.current_stream().wait_stream(warm_up)
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    whole()
                graphs.append(graph)
        return graphs[0], graphs[1]
