"""Which ingredient of RaT-BPTT does `bptt` lack? Both recipes, and each ingredient changed alone, on CIFAR-10.

RaT-BPTT (Feng et al. 2023, "Embarrassingly Simple Dataset Distillation") and `bptt` both learn images x by descending

    L(x) = E [ cross-entropy of a real batch at theta_K ],    theta_K: a network trained on x for K steps,

through the last W of the K steps only. Here they are one program with switches: the rule of the inner steps (Adam or
SGD), where windows start (fresh networks or persistent chains), how a window is differentiated (exactly or by
differences), the real batch, clipping, augmentation, the images' start and the outer rate. A *population* is P
constructions side by side, each with its own images, networks and random numbers; its members share their windows.

One inner step, g = grad_theta l(theta; A_t x) with A_t the augmentation of step t, and k the network's age after it:

    m' = beta m + kappa g,    v' = beta2 v + (1 - beta2) g^2,    theta' = theta - eta c1 m' / r

    Adam: kappa = 1 - beta, c1 = 1 / (1 - beta^k), c2 = 1 / (1 - beta2^k), r = sqrt(c2 v' + eps^2)
    SGD:  kappa = 1,        c1 = 1,                                        r = 1

Its adjoint takes costates (p, q, s) of (theta', m', v') to those of (theta, m, v):

    a = q - eta c1 p / r,          b = s + eta c1 c2 m' p / (2 r^3)     (SGD: b = 0)
    u = kappa a + 2 (1 - beta2) g b                                     (the costate of g)
    p <- p + H u,   q <- beta a,   s <- beta2 b,   dL/d(A_t x) = d<g, u> / d(A_t x)

H u and d<g, u> / d(A_t x) are the derivative of (grad_theta l, grad_input l) along u in theta, found forwards over
backwards, or by differences: [grad l(theta + h u) - grad l(theta - h u)] / 2h, where h is chosen at a window's end so
that h |u| / (1 - beta) is ``REACH`` times the length of the window's path.

A bias before an instance norm changes nothing and is left out: 319,626 parameters. Convolutions are bfloat16 on a GPU.
Judged on a tenth of the training data that neither the construction nor the whitening saw; test data are not read.
A population needs a CUDA device; several go side by side (under NVIDIA's multi-process service), and a call goes on
where the last one stopped.

    python benchmarks/bptt_ingredients.py check                    # the adjoint against autograd
    python benchmarks/bptt_ingredients.py rat --data-dir data --steps 2000 --out results.jsonl
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, grad_and_value, jvp
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from pseudocoresets.data import load_dataset
from pseudocoresets.workflows.provenance import provenance

CLASSES, SIDE, WIDTH, DEPTH = 10, 32, 128, 3
BETA2, EPSILON, REACH = 0.999, 1e-8, 0.3
POOL = 8
EVALUATED_AT_ONCE = 100


# ---------------------------------------------------------------------------------------------------------------- data
class Data(NamedTuple):
    """Whitened images (n, 3, 32, 32) and labels, for construction and for judging."""

    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor


def prepare(images: Tensor, labels: Tensor, device: torch.device, seed: int = 0) -> Data:
    """A stratified tenth held out; ZCA, x = V diag(1 / sqrt(lambda + 0.1)) V^T (z - mean), fitted on the rest."""
    generator = torch.Generator().manual_seed(seed)
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(CLASSES):
        members = (labels == label).nonzero()[:, 0]
        held[members[torch.randperm(len(members), generator=generator)[: len(members) // 10]]] = True
    pixels, kept = images.to(device).double() / 255, ~held.to(device)
    mean, std = pixels[kept].mean((0, 2, 3)), pixels[kept].std((0, 2, 3))
    flat = ((pixels - mean[:, None, None]) / std[:, None, None]).flatten(1)
    flat = flat - flat[kept].mean(0)
    values, vectors = torch.linalg.eigh(flat[kept].T @ flat[kept] / (int(kept.sum()) - 1))
    x = (flat @ (vectors / (values.clamp_min(0) + 0.1).sqrt()) @ vectors.T).float().view(pixels.shape)
    y = labels.to(device)
    return Data(x[kept], y[kept], x[~kept], y[~kept])


# -------------------------------------------------------------------------------------------------------- augmentation
NONE, FLIPS, DSA = (), ("flip", "rotate"), ("color", "crop", "cutout", "flip", "scale", "rotate")


class Views(NamedTuple):
    """Drawn augmentations, one kind a step: c (a x + b) with x resampled by ``matrix`` and cut by ``mask``."""

    matrix: Tensor
    mask: Tensor
    colour: Tensor


def draw_views(kinds: list[tuple[str, ...]], steps: int, count: int, generator: torch.Generator) -> Views:
    """For each step and each member (with its kinds) one kind, and parameters of their own for ``count`` images."""
    device, shape = generator.device, (steps, len(kinds), count)
    choice = torch.rand(shape[:2], generator=generator, device=device)
    names = sorted({kind for family in kinds for kind in family})
    is_kind = {name: torch.zeros(shape[:2], dtype=torch.bool, device=device) for name in names}
    for member, family in enumerate(kinds):
        for place, name in enumerate(family):
            inside = (choice[:, member] * len(family)).long().clamp_max(len(family) - 1) == place
            is_kind[name][:, member] = inside
    chosen = {name: flag[..., None].expand(shape) for name, flag in is_kind.items()}
    u, w, z = torch.rand((3, *shape), generator=generator, device=device).unbind()
    one, zero = torch.ones_like(u), torch.zeros_like(u)
    a, b, c, d, tx, ty = one, zero, zero, one, zero, zero
    if "flip" in chosen:
        a = torch.where(chosen["flip"] & (u < 0.5), -one, a)
    if "rotate" in chosen:
        angle = (u - 0.5) * (math.pi / 6)
        a, d = (torch.where(chosen["rotate"], angle.cos(), old) for old in (a, d))
        b, c = torch.where(chosen["rotate"], -angle.sin(), b), torch.where(chosen["rotate"], angle.sin(), c)
    if "scale" in chosen:
        low, high = 1 / 1.2, 1.2
        a = torch.where(chosen["scale"], low + u * (high - low), a)
        d = torch.where(chosen["scale"], low + w * (high - low), d)
    if "crop" in chosen:
        tx, ty = (torch.where(chosen["crop"], ((p * 9).floor() - 4) * (2 / SIDE), zero) for p in (u, w))
    mask = torch.ones(1, device=device)
    if "cutout" in chosen:
        places = torch.arange(SIDE, device=device)
        rows, columns = ((places - (p * (SIDE + 1)).floor()[..., None] + 8).div(16).floor() == 0 for p in (u, w))
        mask = 1.0 - (rows[..., :, None] & columns[..., None, :] & chosen["cutout"][..., None, None]).float()
    colour = torch.stack([zero, one, one], -1)
    if "color" in chosen:
        colour = torch.where(chosen["color"][..., None], torch.stack([u - 0.5, 2 * w, z + 0.5], -1), colour)
    return Views(torch.stack([a, b, tx, c, d, ty], -1), mask, colour)


def apply_views(x: Tensor, views: Views) -> Tensor:
    """(P, N, 3, 32, 32) to (steps, P, N, 3, 32, 32); affine in x."""
    shape = (*views.matrix.shape[:3], *x.shape[-3:])
    axis = (torch.arange(SIDE, device=x.device) * 2 + 1) / SIDE - 1
    a, b, tx, c, d, ty = views.matrix.flatten(0, 2)[:, :, None, None].unbind(1)
    grid = torch.stack([a * axis + b * axis[:, None] + tx, c * axis + d * axis[:, None] + ty], -1)
    moved = F.grid_sample(x.expand(shape).reshape(-1, *x.shape[-3:]), grid.to(x.dtype), align_corners=False).view(shape)
    if views.mask.dim() > 1:
        moved = moved * views.mask[..., None, :, :].to(x.dtype)
    brightness, saturation, contrast = views.colour.to(x.dtype)[..., None, None, None].unbind(3)
    moved = moved + brightness
    grey = moved.mean(3, keepdim=True)
    moved = (moved - grey) * saturation + grey
    level = moved.mean((3, 4, 5), keepdim=True)
    return (moved - level) * contrast + level


# ------------------------------------------------------------------------------------------------------------- network
def shapes() -> list[tuple[tuple[int, ...], int]]:
    """Each parameter's shape, and its fan-in (0 and -1: starts at zero and at one)."""
    blocks = [((9 * channels, WIDTH), 9 * channels) for channels in (3, *[WIDTH] * (DEPTH - 1))]
    norm, features = [((WIDTH,), -1), ((WIDTH,), 0)], WIDTH * (SIDE >> DEPTH) ** 2
    head = [((features, CLASSES), features), ((CLASSES,), features)]
    return [shape for block in blocks for shape in (block, *norm)] + head


SIZE = sum(math.prod(shape) for shape, _ in shapes())


def initialise(members: int, generator: torch.Generator) -> Tensor:
    """PyTorch's initialisation, uniform within 1 / sqrt(fan-in); (members, parameters)."""
    parts = []
    for shape, fan in shapes():
        size = (members, math.prod(shape))
        uniform = torch.rand(size, generator=generator, device=generator.device) * 2 - 1
        parts.append(uniform / math.sqrt(fan) if fan > 0 else torch.full_like(uniform, -fan))
    return torch.cat(parts, 1)


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """3 x 3 convolutions of (P, N, H, W, C) by (P, 9 C, C'): products with patches, in parts that fill a GPU.

    One network's later convolutions are cuDNN's.
    """
    members, count, height, width, channels = x.shape
    if members == 1 and channels > 3:
        kernel = weight.view(3, 3, channels, -1).permute(3, 2, 0, 1)
        return F.conv2d(x[0].permute(0, 3, 1, 2), kernel, padding=1).permute(0, 2, 3, 1)[None]
    padded = F.pad(x, (0, 0, 1, 1, 1, 1))
    patches = [padded[:, :, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    if channels == 3:  # rows of 32 are aligned, those of 27 are not
        patches.append(x.new_zeros(members, count, height, width, 5))
        weight = F.pad(weight, (0, 0, 0, 5))
    parts = count if channels == 3 else max(1, count // 10)
    return (torch.cat(patches, -1).view(members, parts, -1, weight.shape[1]) @ weight[:, None]).view(*x.shape[:-1], -1)


def logits(theta: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """(P, parameters) and images (P, N, 3, 32, 32) to (P, N, classes); convolutions in ``dtype``, norms in theta's."""
    parts = iter(theta.split([math.prod(shape) for shape, _ in shapes()], 1))
    y = x.permute(0, 1, 3, 4, 2).to(dtype)
    for _ in range(DEPTH):
        weight, scale, shift = next(parts), next(parts), next(parts)
        y = convolve(y, weight.view(len(theta), -1, WIDTH).to(dtype)).to(theta.dtype)
        mean, square = y.mean((2, 3), keepdim=True), y.square().mean((2, 3), keepdim=True)
        y = (y - mean) * (square - mean.square() + 1e-5).rsqrt()
        y = (y * scale[:, None, None, None] + shift[:, None, None, None]).to(dtype).relu()
        y = y.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).mean((3, 5))
    weight, bias = next(parts), next(parts)
    y = y.flatten(2) @ weight.view(len(theta), -1, CLASSES).to(dtype)
    return y.to(theta.dtype) + bias[:, None]


def energy(theta: Tensor, x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """The members' mean cross-entropies, (P,)."""
    return -logits(theta, x, dtype).log_softmax(-1).gather(-1, y[..., None])[..., 0].mean(-1)


def traced(function: Callable[..., Any], *example: Tensor) -> Callable[..., Any]:
    """The tensor operations of a function that differentiates inside, as one graph; compiled on a GPU."""
    graph = make_fx(lambda *inputs: function(*inputs))(*example)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    options = {"max_pointwise_cat_inputs": 10}  # the patches of a convolution are one kernel
    return torch.compile(graph, dynamic=False, options=options) if example[0].is_cuda else graph


# --------------------------------------------------------------------------------------------- chains and their adjoint
class Rule(NamedTuple):
    """How the inner steps go: ``adam`` or ``sgd``, rate eta, and beta (momentum)."""

    kind: str
    rate: float
    beta: float


ADAM, PLAIN, MOVING = Rule("adam", 1e-3, 0.9), Rule("sgd", 0.05, 0.0), Rule("sgd", 0.0125, 0.9)


class Chains:
    """P networks on P sets of images, forwards and backwards a step at a time; on a GPU each step is a CUDA graph.

    ``views`` holds what the coming steps see; ``step`` counts them. What ``advance(keep=True)`` leaves in ``trail``
    (theta_t, g_t, m_t, v_t) is what ``retreat`` needs, which turns ``costate`` = (p, q, s) back by a step and
    leaves dL/d(A_t x) in ``slopes``.
    """

    def __init__(self, y: Tensor, window: int, total: int, dtype: torch.dtype, by_differences: bool = False) -> None:
        self.members, self.count, self.window, self.dtype, self.device = *y.shape, window, dtype, y.device
        real = torch.float64 if dtype == torch.float64 else torch.float32
        self.y, self.by_differences = y, by_differences
        self.moving = torch.zeros(3, self.members, SIZE, dtype=real, device=y.device)
        self.costate = torch.zeros_like(self.moving)
        self.trail = torch.zeros(window, 4, self.members, SIZE, dtype=real, device=y.device)
        image = (self.members, self.count, 3, SIDE, SIDE)
        self.views = torch.randn(max(window, total), *image, dtype=real, device=y.device)
        self.slopes = torch.zeros(window, *image, dtype=real, device=y.device)
        self.rule = torch.ones(4, self.members, 1, dtype=real, device=y.device)
        self.age, self.path, self.spacing = (torch.ones(self.members, 1, dtype=real, device=y.device) for _ in range(3))
        self.step = torch.zeros(1, dtype=torch.long, device=y.device)
        view = self.views[0]
        self._forwards = traced(self._forwards_by, *self.moving, self.age, self.rule, view)
        examples = (self.trail[0], self.costate, self.age, self.rule, view, self.spacing)
        self._backwards = traced(self._backwards_by, *examples)
        self._advance, self._advance_kept = (self._captured(lambda keep=keep: self._go(keep)) for keep in (False, True))
        self._retreat = self._captured(self._go_back)

    def follow(self, rules: list[Rule]) -> None:
        """Sets eta, beta, kappa and whether it is Adam."""
        rows = [(r.rate, r.beta, 1 - r.beta if r.kind == "adam" else 1.0, float(r.kind == "adam")) for r in rules]
        self.rule.copy_(torch.tensor(rows).T[..., None])

    def restart(self, theta: Tensor) -> None:
        self.moving.zero_()
        self.moving[0].copy_(theta)
        self.age.zero_()

    def see(self, views: Tensor) -> None:
        self.views[: len(views)].copy_(views)
        self.step.zero_()

    def advance(self, steps: int, keep: bool = False) -> None:
        for _ in range(steps):
            (self._advance_kept if keep else self._advance)()

    def retreat(self, slope: Tensor) -> Tensor:
        """dL/d(A_t x) of the window's steps, from dL/dtheta_K; the chains stay where they are."""
        self.path.copy_((self.moving[0] - self.trail[0, 0]).norm(dim=-1, keepdim=True))
        self.costate.zero_()
        self.costate[0].copy_(slope)
        self.step.fill_(self.window - 1)
        for _ in range(self.window):
            self._retreat()
        self.age += self.window
        return self.slopes

    def _go(self, keep: bool) -> None:
        self.age += 1
        theta, m, v = self.moving
        g, *after = self._forwards(theta, m, v, self.age, self.rule, self.views.index_select(0, self.step)[0])
        if keep:
            self.trail.index_copy_(0, self.step, torch.stack([theta, g, m, v])[None])
        self.moving.copy_(torch.stack(after))
        self.step += 1

    def _go_back(self) -> None:
        trail, view = (held.index_select(0, self.step)[0] for held in (self.trail, self.views))
        if self.by_differences:
            u = self._pull(trail, self.costate, self.age, self.rule)[0]
            far = REACH * (1 - self.rule[1]) * self.path / u.norm(dim=-1, keepdim=True)
            self.spacing.copy_(torch.where(self.step == self.window - 1, far, self.spacing))
        costate, slope = self._backwards(trail, self.costate, self.age, self.rule, view, self.spacing)
        self.costate.copy_(costate)
        self.slopes.index_copy_(0, self.step, slope[None])
        self.age -= 1
        self.step -= 1

    def _forwards_by(
        self, theta: Tensor, m: Tensor, v: Tensor, k: Tensor, rule: Tensor, view: Tensor
    ) -> tuple[Tensor, ...]:
        eta, beta, kappa, _ = rule
        g = grad(lambda theta: energy(theta, view, self.y, self.dtype).sum())(theta)
        m, v = beta * m + kappa * g, BETA2 * v + (1 - BETA2) * g * g
        r, c1, _ = scaling(v, k, rule)
        return g, theta - eta * c1 * m / r, m, v

    @staticmethod
    def _pull(trail: Tensor, costate: Tensor, k: Tensor, rule: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """u, a and b of the module's docstring; in u what cancels of the two terms in p is taken out beforehand."""
        (_, g, m, v), (p, q, s), (eta, beta, kappa, adam) = trail, costate, rule
        r, c1, c2 = scaling(BETA2 * v + (1 - BETA2) * g * g, k, rule)
        pulled = eta * c1 * p / r
        a, b = q - pulled, adam * (s + c2 * (beta * m + kappa * g) * pulled / (2 * r * r))
        shrunk = (kappa * (c2 * BETA2 * v + EPSILON**2) - c2 * (1 - BETA2) * beta * g * m) / (r * r)
        return kappa * q + adam * 2 * (1 - BETA2) * g * s - torch.where(adam > 0, shrunk, 1.0) * pulled, a, b

    def _backwards_by(
        self, trail: Tensor, costate: Tensor, k: Tensor, rule: Tensor, view: Tensor, spacing: Tensor
    ) -> tuple[Tensor, Tensor]:
        u, a, b = self._pull(trail, costate, k, rule)
        theta = trail[0]
        if self.by_differences:
            both = torch.cat([theta + spacing * u, theta - spacing * u])
            y, images = torch.cat([self.y, self.y]), torch.cat([view, view])
            slopes = grad(lambda theta, x: energy(theta, x, y, self.dtype).sum(), (0, 1))(both, images)
            ends = [slope.unflatten(0, (2, -1)) for slope in slopes]
            curved, felt = ((end[0] - end[1]) / (2 * spacing.view(-1, *[1] * (end.dim() - 2))) for end in ends)
        else:
            slopes_at = grad(lambda theta, x: energy(theta, x, self.y, self.dtype).sum(), (0, 1))
            curved, felt = jvp(lambda theta: slopes_at(theta, view), (theta,), (u,))[1]
        return torch.stack([costate[0] + curved, rule[1] * a, BETA2 * b]), felt

    def _captured(self, function: Callable[[], None]) -> Callable[[], None]:
        if self.device.type != "cuda":
            return function
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step.zero_()
                function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
        return graph.replay


def scaling(v: Tensor, k: Tensor, rule: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """r, c1 and c2 at age k."""
    _, beta, _, adam = rule
    c1, c2 = adam / (1 - beta**k) + (1 - adam), 1 / (1 - BETA2**k)
    return torch.where(adam > 0, (c2 * v + EPSILON**2).sqrt(), 1.0), c1, c2


# --------------------------------------------------------------------------------------------------------- construction
@dataclass(frozen=True)
class Member:
    """One construction of a population; the defaults are RaT-BPTT's."""

    name: str
    rule: Rule = ADAM
    batch: int = 5000
    clip: bool = True
    kinds: tuple[str, ...] = FLIPS
    real_kinds: tuple[str, ...] = FLIPS
    start: str = "noise"
    rate: float = 1e-3
    beta2: float = 0.999
    averaging: float = 0.0


@dataclass(frozen=True)
class Population:
    """Constructions side by side: windows of ``window`` steps, of fresh networks that end at an age within ``total``
    (drawn anew in every outer step), or of ``POOL`` persistent chains each, restarted with probability window / total.
    """

    members: tuple[Member, ...]
    ipc: int = 1
    window: int = 60
    total: int = 200
    pool: bool = False
    by_differences: bool = False


def column(values: list[Any], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device).view(-1, 1, 1, 1, 1)


class Construction:
    """The images ``x`` (P, N, 3, 32, 32) of a population, what its outer Adam carries, and its chains."""

    CARRIED = ("x", "mean", "first", "second", "norm", "pool", "ages", "taken")

    def __init__(self, population: Population, data: Data, dtype: torch.dtype, seed: int) -> None:
        self.settings, self.members, self.data, self.dtype = population, population.members, data, dtype
        device, count = data.x.device, len(self.members)
        self.random, self.host = torch.Generator(device).manual_seed(seed), np.random.default_rng(seed)
        y = torch.arange(CLASSES, device=device).repeat_interleave(population.ipc).expand(count, -1).contiguous()
        before = max(EVALUATED_AT_ONCE, population.total - population.window)
        self.chains = Chains(y, population.window, before, dtype, population.by_differences)
        self.x = torch.stack([self._start(member) for member in self.members])
        self.mean, self.first, self.second = self.x, torch.zeros_like(self.x), torch.zeros_like(self.x)
        self.norm, self.losses, self.taken = *torch.zeros(2, count, device=device), 0
        places = POOL if population.pool else 0
        self.pool = torch.zeros(places, 3, count, SIZE, device=device)
        self.ages = torch.zeros(places, count, 1, device=device)
        for place in self.pool:
            place[0] = initialise(count, self.random)
        self.batches = {
            m.batch: [i for i, one in enumerate(self.members) if one.batch == m.batch] for m in self.members
        }
        self.judges = {size: self._judge_of(size) for size in self.batches}

    def _start(self, member: Member) -> Tensor:
        """Random real images of each class, or noise of unit norm."""
        if member.start == "real":
            draws = torch.rand(len(self.data.y), generator=self.random, device=self.data.y.device)
            best = [(draws * (self.data.y == label)).topk(self.settings.ipc).indices for label in range(CLASSES)]
            return self.data.x[torch.cat(best)]
        shape = (self.settings.ipc * CLASSES, 3, SIDE, SIDE)
        noise = torch.randn(shape, generator=self.random, device=self.data.x.device)
        return noise / noise.flatten(1).norm(dim=1)[:, None, None, None]

    def _judge_of(self, size: int) -> Callable[..., Any]:
        """(theta, x, y) of one member to the gradient and the value of the real batch's cross-entropy."""

        def judge(theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return grad_and_value(lambda theta: energy(theta, x, y, self.dtype).sum())(theta)

        x, y = self.data.x[None, :size].contiguous(), self.data.y[None, :size].contiguous()
        return traced(judge, self.chains.moving[0, :1].clone(), x, y)

    @torch.no_grad()
    def outer_step(self) -> None:
        """One estimate of dL/dx and one step of Adam on it."""
        chains, settings, count = self.chains, self.settings, len(self.members)
        kinds = [member.kinds for member in self.members]
        chains.follow([member.rule for member in self.members])
        fresh = initialise(count, self.random)
        chosen = int(self.host.integers(POOL))
        before = int(self.host.integers(settings.total - settings.window + 1))
        chains.restart(fresh)
        if settings.pool:
            stays = torch.rand(count, 1, generator=self.random, device=fresh.device) >= settings.window / settings.total
            chains.moving.copy_(torch.where(stays, self.pool[chosen], chains.moving))
            chains.age.copy_(torch.where(stays, self.ages[chosen], chains.age))
        elif before:
            chains.see(apply_views(self.x, draw_views(kinds, before, self.x.shape[1], self.random)))
            chains.advance(before)
        with torch.enable_grad():
            x = self.x.detach().requires_grad_()
            views = apply_views(x, draw_views(kinds, settings.window, x.shape[1], self.random))
        chains.see(views.detach())
        chains.advance(settings.window, keep=True)
        if settings.pool:
            self.pool[chosen], self.ages[chosen] = chains.moving, chains.age
        self._descend(torch.autograd.grad(views, x, chains.retreat(self._real_slopes()))[0])

    def _real_slopes(self) -> Tensor:
        """Each member's dL/dtheta_K on a real batch of its own."""
        slopes = torch.empty_like(self.chains.moving[0])
        for size, members in self.batches.items():
            chosen = torch.randint(len(self.data.x), (len(members), size), generator=self.random, device=slopes.device)
            x, y = self.data.x[chosen], self.data.y[chosen]
            x = apply_views(x, draw_views([self.members[i].real_kinds for i in members], 1, size, self.random))[0]
            for place, i in enumerate(members):
                one = slice(place, place + 1)
                slopes[i], self.losses[i] = self.judges[size](self.chains.moving[0, i : i + 1].clone(), x[one], y[one])
        return slopes

    def _descend(self, dx: Tensor) -> None:
        """Adam, after each member's gradient was clipped at twice the running mean of its norm."""
        self.taken += 1
        norm = dx.flatten(1).norm(dim=1)
        self.norm = norm if self.taken == 1 else 0.9 * self.norm + 0.1 * norm
        shrink = (2 * self.norm / norm).clamp_max(1).view(-1, 1, 1, 1, 1)
        dx = torch.where(column([member.clip for member in self.members], dx), shrink, 1.0) * dx
        beta2, rate, averaging = (
            column([getattr(member, name) for member in self.members], dx) for name in ("beta2", "rate", "averaging")
        )
        self.first = 0.9 * self.first + 0.1 * dx
        self.second = beta2 * self.second + (1 - beta2) * dx * dx
        scale = (self.second / (1 - beta2**self.taken)).sqrt() + EPSILON
        self.x = self.x - rate * self.first / (1 - 0.9**self.taken) / scale
        self.mean = averaging * self.mean + (1 - averaging) * self.x

    @torch.no_grad()
    def evaluate(self, networks: int, lengths: tuple[int, ...] = (300, 1000)) -> list[dict[str, float]]:
        """Held-out accuracy in per cent of fresh networks on each member's images, alone and averaged, by protocol.

        ``own``: trained as in the construction; ``adam``: by RaT-BPTT's inner rule; ``sgd``: SGD of rate 0.01 and
        momentum 0.9 with DSA.
        """
        count, random = len(self.members), torch.Generator(self.x.device).manual_seed(1)
        fixed = {"adam": (ADAM, FLIPS), "sgd": (Rule("sgd", 0.01, 0.9), DSA)}
        rows: list[dict[str, float]] = [{} for _ in self.members]
        for protocol in ("own", *fixed):
            training = [fixed.get(protocol, (member.rule, member.kinds)) for member in self.members]
            self.chains.follow([rule for rule, _ in training])
            found = torch.zeros(len(lengths), networks, count, len(self.data.held_y), CLASSES, device=self.x.device)
            for network in range(networks):
                self.chains.restart(initialise(count, random))
                for age in range(EVALUATED_AT_ONCE, max(lengths) + 1, EVALUATED_AT_ONCE):
                    drawn = draw_views([kinds for _, kinds in training], EVALUATED_AT_ONCE, self.x.shape[1], random)
                    self.chains.see(apply_views(self.mean, drawn))
                    self.chains.advance(EVALUATED_AT_ONCE)
                    for i in range(count) if age in lengths else ():
                        theta = self.chains.moving[0, i : i + 1].clone()
                        p = logits(theta, self.data.held_x[None], self.dtype)[0].softmax(-1)
                        found[lengths.index(age), network, i] = p
            right = (found.argmax(-1) == self.data.held_y).double().mean((1, 3)) * 100
            together = (found.mean(1).argmax(-1) == self.data.held_y).double().mean(-1) * 100
            for (place, length), i in itertools.product(enumerate(lengths), range(count)):
                rows[i][f"{protocol}-{length}"] = round(float(right[place, i]), 2)
                rows[i][f"{protocol}-{length}-averaged"] = round(float(together[place, i]), 2)
        return rows


# ---------------------------------------------------------------------------------------------------------- what is run
RAT = Member("RaT-BPTT")
BASE = replace(RAT, name="RaT-BPTT, real batch 1024", batch=1024)
OURS = Member("bptt", PLAIN, 512, False, DSA, NONE, "real", 5e-3, 0.99, 0.99)
OURS10 = replace(OURS, rule=MOVING, batch=1024, rate=3e-3)
POPULATIONS = {
    "rat": Population(
        (
            RAT,
            BASE,
            replace(BASE, name="the same, other random numbers"),
            replace(BASE, name="inner SGD 0.05", rule=PLAIN),
            replace(BASE, name="inner SGD 0.0125, momentum 0.9", rule=MOVING),
            replace(BASE, name="real batch 512", batch=512),
            replace(BASE, name="no clipping", clip=False),
            replace(BASE, name="DSA, on synthetic images only", kinds=DSA, real_kinds=NONE),
            replace(BASE, name="start from real images", start="real"),
            replace(BASE, name="outer rate 0.005", rate=5e-3),
        )
    ),
    "pool": Population((BASE, replace(BASE, name="inner SGD 0.0125, momentum 0.9", rule=MOVING)), pool=True),
    "long": Population((BASE, replace(BASE, name="inner SGD 0.05", rule=PLAIN)), window=40, total=400),
    "differences": Population(
        (BASE, replace(BASE, name="inner SGD 0.0125, momentum 0.9", rule=MOVING)), by_differences=True
    ),
    "ours": Population(
        (
            OURS,
            replace(OURS, name="inner Adam 0.001", rule=ADAM),
            replace(OURS, name="inner SGD 0.0125, momentum 0.9", rule=MOVING),
            replace(OURS, name="inner Adam, flips and rotations on both", rule=ADAM, kinds=FLIPS, real_kinds=FLIPS),
            replace(BASE, name="all of RaT-BPTT but the windows"),
        ),
        window=40,
        total=400,
        pool=True,
        by_differences=True,
    ),
    "rat10": Population((BASE, replace(BASE, name="inner SGD 0.0125, momentum 0.9", rule=MOVING)), ipc=10),
    "ours10": Population(
        (OURS10, replace(OURS10, name="inner Adam 0.001", rule=ADAM)), 10, 40, 400, pool=True, by_differences=True
    ),
}


def run(options: argparse.Namespace, device: torch.device) -> None:
    """Constructs a population until ``--steps`` or ``--seconds``; a row a member at every checkpoint."""
    began = time.perf_counter()
    population = POPULATIONS[options.population]
    train = load_dataset("cifar10", options.data_dir).train
    data = prepare(train.images, train.labels, device)
    construction = Construction(
        population, data, torch.bfloat16 if device.type == "cuda" else torch.float32, options.seed
    )
    state = options.state / f"{options.population}-{options.seed}.pt"
    if state.exists():
        for name, value in torch.load(state, map_location=device, weights_only=True).items():
            setattr(construction, name, value)
        construction.random.manual_seed(options.seed + construction.taken)
    construction.outer_step()
    taken, since = construction.taken, time.perf_counter()
    print(f"{options.population}: ready after {since - began:.0f} s at outer step {taken}", flush=True)
    while construction.taken < options.steps and time.perf_counter() - began < options.seconds:
        construction.outer_step()
        if construction.taken % 50 == 0:
            losses = [round(value, 3) for value in construction.losses.tolist()]
            print(options.population, construction.taken, losses, flush=True)
        if construction.taken % options.every == 0 and construction.taken < options.steps:
            record(options, construction, 1e3 * (time.perf_counter() - since) / (construction.taken - taken), 2)
            taken, since = construction.taken, time.perf_counter()
    if device.type == "cuda":
        torch.cuda.synchronize()
    spent = 1e3 * (time.perf_counter() - since) / max(1, construction.taken - taken)
    torch.save({name: getattr(construction, name) for name in construction.CARRIED}, state)
    record(options, construction, spent, options.networks)


def record(options: argparse.Namespace, construction: Construction, milliseconds: float, networks: int) -> None:
    """Appends a line for each member, and keeps the images as they are."""
    settings = {name: value for name, value in vars(construction.settings).items() if name != "members"}
    shared = {"population": options.population, **settings, "outer_steps": construction.taken, "seed": options.seed}
    shared |= {"networks": networks, "ms_per_outer_step_of_population": round(milliseconds, 2)}
    with options.out.open("a") as file:
        for member, accuracy in zip(construction.members, construction.evaluate(networks), strict=True):
            file.write(json.dumps({**shared, "member": asdict(member), "accuracy": accuracy, **provenance()}) + "\n")
            print(options.population, construction.taken, member.name, accuracy, flush=True)
    images = options.out.with_name(f"{options.out.stem}-{options.population}-{options.seed}.npz")
    names = np.array([member.name for member in construction.members])
    np.savez_compressed(images, x=construction.mean.half().cpu().numpy(), names=names, steps=construction.taken)


def check(device: torch.device, before: int = 10, window: int = 4) -> None:
    """The adjoint against autograd through a window, from a place that chains reach in double precision.

    Not from the start: Adam's first step is eta sign(g), whose derivative no number format finds.
    """
    random = torch.Generator(device).manual_seed(0)
    y = torch.arange(CLASSES, device=device).expand(2, -1).contiguous()
    x, real = torch.randn(2, 2, CLASSES, 3, SIDE, SIDE, generator=random, device=device)
    views = apply_views(x, draw_views([FLIPS, DSA], before + window, CLASSES, random)).double()
    start, place, found = initialise(2, random), None, {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        chains = Chains(y, window, before, dtype)
        chains.follow([ADAM, MOVING])
        if place is None:
            chains.restart(start)
            chains.see(views[:before])
            chains.advance(before)
            place = chains.moving.clone(), chains.age.clone(), chains.rule.clone()
        chains.moving.copy_(place[0])
        chains.age.copy_(place[1])
        chains.see(views[before:])
        chains.advance(window, keep=True)
        end = chains.moving[0]
        slope = grad(lambda theta, x, dtype: energy(theta, x, y, dtype).sum())(end, real.to(end.dtype), dtype)
        found[dtype] = chains.retreat(slope).double()
    (theta, m, v), k, rule = (part.requires_grad_() for part in place[0]), place[1], place[2]
    leaf = views[before:].clone().requires_grad_()
    for view in leaf:
        (g,) = torch.autograd.grad(energy(theta, view, y, torch.float64).sum(), theta, create_graph=True)
        m, v, k = rule[1] * m + rule[2] * g, BETA2 * v + (1 - BETA2) * g * g, k + 1
        r, c1, _ = scaling(v, k, rule)
        theta = theta - rule[0] * c1 * m / r
    (exact,) = torch.autograd.grad(energy(theta, real.double(), y, torch.float64).sum(), leaf)
    for dtype, one in found.items():
        errors = [float((one[:, i] - exact[:, i]).norm() / exact[:, i].norm()) for i in range(2)]
        print(f"{dtype}: relative error of dL/d(views): Adam {errors[0]:.1e}, SGD {errors[1]:.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("population", choices=["check", *POPULATIONS])
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="Folder that holds the data sets.")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=500, help="outer steps between checkpoints")
    parser.add_argument("--seconds", type=float, default=math.inf, help="construct no longer; the state is kept")
    parser.add_argument("--networks", type=int, default=8, help="of the last evaluation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, default=Path(".data"), help="folder of what a later call goes on from")
    parser.add_argument("--out", type=Path, default=Path("bptt_ingredients.jsonl"))
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check(device) if options.population == "check" else run(options, device)


if __name__ == "__main__":
    main()
