"""How much accuracy is left when an adversary may change every pixel by at most epsilon (l-inf).

The model under attack is the average over parameter sets, and the adversary sees all of them (white box):

    p(y | x) = (1/J) sum_j softmax(f(T(x), theta_j))_y,        x in [0, 1], T the transform to the network's inputs

An image counts as robust if none of the attacks finds x' with ||x' - x||_inf <= epsilon, x' in [0, 1], that is
classified otherwise than its label. ``STANDARD`` has the four attacks of AutoAttack (Croce and Hein 2020), each on what
the ones before left: APGD on the cross-entropy, APGD on the difference of logits ratio towards each of nine classes,
FAB towards the same, and the Square attack, with 500 queries where AutoAttack has 5,000.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.data.dataset import Split
from pseudocoresets.data.transforms import as_pixels
from pseudocoresets.evaluation.scores import Summary
from pseudocoresets.inference.samples import PosteriorSamples

EPSILONS = (1 / 255, 2 / 255, 4 / 255, 8 / 255)
"""8/255 is RobustBench's for CIFAR-10; the paper does not name its own."""
PASSES_AT_ONCE = 4000
"""Images times parameter sets whose gradients are computed together."""
APGD_MOMENTUM = 0.75
APGD_PROGRESS = 0.75
"""Share of steps of a period that must have been for the better, or the step is halved."""
FAB_SHARE, FAB_BEYOND, FAB_BACK = 0.1, 1.05, 0.9
"""How much the start counts at most, how far beyond the boundary steps go, and how far back after a success."""
SQUARE_SHARE = 0.8
"""Of the image, in the Square attack's first squares."""
SQUARE_HALVINGS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Parts of the queries after which the squares' area is halved."""

Scores = Callable[[Tensor], Tensor]
"""Pixels (n, channels, height, width) in [0, 1] to scores (n, classes) whose largest is the predicted class."""
Loss = Callable[[Tensor, Tensor], Tensor]
"""Of scores and labels, for each image; the adversary makes it large."""


class Ascent(NamedTuple):
    """The loss of each image, its gradient, and where the prediction is wrong."""

    losses: Tensor
    gradient: Tensor
    wrong: Tensor


@dataclass(frozen=True)
class AttackedImages:
    """Images with their labels, the model that classifies them, and how far each pixel may move."""

    scores: Scores
    pixels: Tensor
    labels: Tensor
    epsilon: float

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, chosen: Tensor) -> AttackedImages:
        return replace(self, pixels=self.pixels[chosen], labels=self.labels[chosen])

    def clipped(self, moved: Tensor) -> Tensor:
        """The nearest images within epsilon and [0, 1]."""
        within = torch.minimum(torch.maximum(moved, self.pixels - self.epsilon), self.pixels + self.epsilon)
        return torch.clamp(within, 0, 1)

    def random_start(self, generator: torch.Generator) -> Tensor:
        """Uniform within epsilon."""
        pixels = self.pixels
        uniform = torch.rand(pixels.shape, generator=generator, device=pixels.device, dtype=pixels.dtype)
        return self.clipped(pixels + self.epsilon * (2 * uniform - 1))

    def margins(self, moved: Tensor) -> Tensor:
        with torch.no_grad():
            return margin(self.scores(moved), self.labels)

    def are_wrong(self, moved: Tensor) -> Tensor:
        """Which of the moved images are classified otherwise than by their labels."""
        return self.margins(moved) <= 0

    def ascent(self, moved: Tensor, loss: Loss) -> Ascent:
        moved = moved.detach().requires_grad_()
        with torch.enable_grad():
            found = self.scores(moved)
            losses = loss(found, self.labels)
            (gradient,) = torch.autograd.grad(losses.sum(), moved)
        return Ascent(losses.detach(), gradient, margin(found.detach(), self.labels) <= 0)


class Attack(Protocol):
    """A search for images near the given ones that are classified otherwise."""

    def __call__(self, images: AttackedImages, generator: torch.Generator) -> Tensor:
        """Images within epsilon; where the search succeeded, they are classified wrongly."""
        ...


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(scores, labels, reduction="none")


def targeted_ratio(scores: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """-(z_y - z_t) / (z_(1) - (z_(3) + z_(4)) / 2), t the target of each image: shifting or scaling changes nothing.

    Without a fourth score it is the difference alone.
    """
    difference = _of(scores, targets) - _of(scores, labels)
    if scores.shape[1] < 4:
        return difference
    ordered = scores.sort(-1, descending=True).values
    return difference / (ordered[:, 0] - ordered[:, 2:4].mean(1) + 1e-12)


def margin(scores: Tensor, labels: Tensor) -> Tensor:
    """z_y - max_{i != y} z_i: positive where the label is predicted."""
    return _of(scores, labels) - scores.scatter(-1, labels[:, None], -math.inf).max(-1).values


def _of(scores: Tensor, classes: Tensor) -> Tensor:
    """The score of one class of each image."""
    return scores.gather(-1, classes[:, None]).squeeze(-1)


@dataclass(frozen=True)
class PGD:
    """Projected gradient ascent on the cross-entropy (Madry et al. 2018), from a random point within epsilon:

    x <- clip(x + step * epsilon * sign(grad L(x))),   clip to [x_0 - epsilon, x_0 + epsilon] and [0, 1]
    """

    steps: int = 40
    step: float = 0.1
    """In units of epsilon."""

    def __call__(self, images: AttackedImages, generator: torch.Generator) -> Tensor:
        found, moved = images.pixels.clone(), images.random_start(generator)
        for _ in range(self.steps):
            answer = images.ascent(moved, cross_entropy)
            found = _where(answer.wrong, moved, found)
            moved = images.clipped(moved + self.step * images.epsilon * answer.gradient.sign())
        return _where(images.are_wrong(moved), moved, found)


@dataclass(frozen=True)
class APGD:
    """Auto-PGD (Croce and Hein 2020): momentum, and a step from 2 epsilon on that is halved when progress stops.

    z = clip(x_t + eta sign(grad L)),   x_{t+1} = clip(x_t + 0.75 (z - x_t) + 0.25 (x_t - x_{t-1}))

    At checkpoints, an image whose loss grew in fewer than three quarters of the steps since the last one, or whose step
    and best loss have not changed since, goes back to its best point with half the step.
    """

    loss: Loss = cross_entropy
    steps: int = 100

    def __call__(self, images: AttackedImages, generator: torch.Generator) -> Tensor:
        search, checkpoints = _Search(images, self.loss, images.random_start(generator)), _checkpoints(self.steps)
        for step in range(1, self.steps + 1):
            search.step()
            if step in checkpoints:
                search.review()
        return search.found


@dataclass(frozen=True)
class FAB:
    """Fast adaptive boundary attack (Croce and Hein 2020) towards ``targets``: the nearest image beyond the boundary.

    With d = z_t - z_y and p(u) the move of u, within [0, 1] and least in l-inf, to the plane where d(x) +
    <grad d(x), . - x> = 0,

        x <- (1 - a) (x + 1.05 p(x)) + a (x_0 + 1.05 p(x_0)),      a = min(0.1, |p(x)| / (|p(x)| + |p(x_0)|)),

    and x <- x_0 + 0.9 (x - x_0) where that is classified wrongly. The nearest such x counts if it is within epsilon.
    """

    targets: Tensor
    steps: int = 100

    def __call__(self, images: AttackedImages, generator: torch.Generator) -> Tensor:
        pixels = here = found = images.pixels
        nearest = torch.full_like(pixels[:, 0, 0, 0], math.inf)
        for _ in range(self.steps):
            answer = images.ascent(here, self._difference)
            level = (answer.gradient * here).flatten(1).sum(1) - answer.losses
            moves = [onto_plane(x, answer.gradient, level) - x for x in (here, pixels)]
            lengths = [_length(move) for move in moves]
            share = (lengths[0] / (lengths[0] + lengths[1]).clamp_min(1e-12)).clamp_max(FAB_SHARE)[:, None, None, None]
            beyond = [x + FAB_BEYOND * move for x, move in zip((here, pixels), moves, strict=True)]
            here = ((1 - share) * beyond[0] + share * beyond[1]).clamp(0, 1)
            wrong, distances = images.are_wrong(here), _length(here - pixels)
            nearer = wrong & (distances < nearest)
            found, nearest = _where(nearer, here, found), torch.where(nearer, distances, nearest)
            here = _where(wrong, pixels + FAB_BACK * (here - pixels), here)
        return _where(nearest <= images.epsilon, found, pixels)

    def _difference(self, scores: Tensor, labels: Tensor) -> Tensor:
        return _of(scores, self.targets) - _of(scores, labels)


def onto_plane(x: Tensor, normal: Tensor, level: Tensor) -> Tensor:
    """The point of [0, 1] with < normal, . > = level that is nearest to x in l-inf; the farthest there is if none.

    Every pixel moves by r, or as far as it can: r solves sum_i |normal_i| min(r, room_i) = |level - < normal, x >|,
    which is linear between two rooms.
    """
    flat, slopes = x.flatten(1), normal.flatten(1)
    missing = level - (slopes * flat).sum(1)
    signs = missing.sign()[:, None] * slopes.sign()
    rooms = torch.where(signs > 0, 1 - flat, flat)
    ordered, order = rooms.sort(1)
    sizes = slopes.abs().gather(1, order)
    spent = torch.cumsum(sizes * ordered, 1) - sizes * ordered
    free = sizes.flip(1).cumsum(1).flip(1)
    enough = spent + ordered * free >= missing.abs()[:, None]
    first = enough.int().argmax(1, keepdim=True)
    reach = (missing.abs()[:, None] - spent.gather(1, first)) / free.gather(1, first).clamp_min(1e-30)
    reach = torch.where(enough.any(1, keepdim=True), reach, ordered[:, -1:])
    return (flat + signs * torch.minimum(reach, rooms)).view_as(x)


def _length(move: Tensor) -> Tensor:
    """l-inf."""
    return move.flatten(1).abs().amax(1)


def apgd_towards(targets: Tensor, steps: int = 100) -> APGD:
    """APGD on the difference of logits ratio to one target for each image."""
    return APGD(partial(targeted_ratio, targets=targets), steps)


@dataclass(frozen=True)
class Targeted:
    """An attack towards one class after another, from the most probable beside the label on, until one succeeds."""

    towards: Callable[[Tensor], Attack]
    """From the target of each image."""
    classes: int = 9

    def __call__(self, images: AttackedImages, generator: torch.Generator) -> Tensor:
        with torch.no_grad():
            others = images.scores(images.pixels).scatter(-1, images.labels[:, None], -math.inf)
        others = others.argsort(-1, descending=True)[:, :-1]
        found, left = images.pixels.clone(), torch.arange(len(images), device=images.pixels.device)
        for targets in others[:, : self.classes].unbind(1):
            if len(left) == 0:
                break
            attack, attacked = self.towards(targets[left]), images.subset(left)
            found[left] = attack(attacked, generator)
            left = left[~attacked.are_wrong(found[left])]
        return found


@dataclass(frozen=True)
class Square:
    """Square attack (Andriushchenko et al. 2020): random squares of +-epsilon, kept where the margin shrinks.

    It asks for scores only, so that gradients which mislead do not help the defender.
    """

    queries: int = 500

    def __call__(self, images: AttackedImages, generator: torch.Generator) -> Tensor:
        pixels, epsilon = images.pixels, images.epsilon
        count, channels, height, width = pixels.shape
        best = images.clipped(pixels + epsilon * _signs((count, channels, 1, width), pixels, generator))
        least = images.margins(best)
        for query in range(self.queries):
            side = max(1, round(math.sqrt(self._area(query) * height * width)))
            side = min(side, height, width)
            trial = best.clone()
            row, column = (int(_integers(extent - side + 1, generator)) for extent in (height, width))
            window = (..., slice(row, row + side), slice(column, column + side))
            trial[window] = pixels[window] + epsilon * _signs((count, channels, 1, 1), pixels, generator)
            trial = images.clipped(trial)
            margins = images.margins(trial)
            better = margins < least
            best, least = _where(better, trial, best), torch.where(better, margins, least)
        return best

    def _area(self, query: int) -> float:
        """The square's share of the image, halved as the queries go on."""
        halvings = sum(query >= part * self.queries for part in SQUARE_HALVINGS)
        return float(SQUARE_SHARE * 0.5**halvings)


STANDARD: tuple[Attack, ...] = (
    PGD(10, 0.25), APGD(cross_entropy), Targeted(apgd_towards), Targeted(FAB), Square(),
)  # fmt: skip
"""Those of AutoAttack, after ten quick steps that leave the dear attacks fewer images."""
ATTACKS: Mapping[str, Sequence[Attack]] = {"pgd": (PGD(),), "autoattack-style": STANDARD}


@dataclass(frozen=True)
class Robustness:
    """Accuracies under attack: those of single chains, attacked one by one, and of their average, attacked as such."""

    epsilon: float
    chains: Summary
    ensemble: float


def averaged_scores(samples: PosteriorSamples) -> Scores:
    """log p(y | x), differentiable in the pixels x, of the average over all chains and samples."""
    if samples.transform is None:
        raise InputError("Only samples of a network for images can be attacked.")
    if samples.transform.span is not None and samples.transform.span.is_floating_point():
        raise InputError("Attacks change pixels in 0..1; images whose values have a range of their own have none.")
    network, thetas = samples.network, samples.draws
    transform = samples.transform.to(thetas.device)

    def scores(pixels: Tensor) -> Tensor:
        inputs = transform(pixels)
        return torch.stack([network.logits(theta, inputs).log_softmax(-1) for theta in thetas]).logsumexp(0)

    return scores


def robust_accuracy(
    scores: Scores,
    pixels: Tensor,
    labels: Tensor,
    epsilon: float,
    attacks: Sequence[Attack] = STANDARD,
    seed: int = 0,
    at_once: int = PASSES_AT_ONCE,
) -> float:
    """The share of images that no attack turns; each attack sees only those that the ones before left."""
    parts = zip(pixels.split(at_once), labels.split(at_once), strict=True)
    attacked = [AttackedImages(scores, *part, epsilon) for part in parts]
    robust = [
        _survivors(images, attacks, generator_for(seed, "attack", i, device=pixels.device))
        for i, images in enumerate(attacked)
    ]
    return sum(robust) / len(labels)


def attack_chains(
    samples: PosteriorSamples,
    split: Split,
    epsilon: float,
    attacks: Sequence[Attack] = STANDARD,
    images: int = 1000,
    samples_per_chain: int = 2,
    seed: int = 0,
) -> Robustness:
    """Attack each chain alone, and the average of all, on the first ``images`` of ``split``.

    Of each chain, ``samples_per_chain`` evenly spaced samples are the model, for the attack and its judgement alike.
    """
    kept = samples.parameters.shape[1]
    count = min(samples_per_chain, kept)
    spaced = [(kept * (i + 1)) // count - 1 for i in range(count)]
    parameters = samples.parameters[:, spaced]
    device = parameters.device
    span = None if samples.transform is None else samples.transform.span
    pixels = as_pixels(split.images[:images].to(device), span)
    labels = split.labels[:images].to(device)

    def against(chains: Tensor) -> float:
        scores = averaged_scores(replace(samples, parameters=chains))
        at_once = max(1, PASSES_AT_ONCE // chains.shape[:2].numel())
        return robust_accuracy(scores, pixels, labels, epsilon, attacks, seed, at_once)

    return Robustness(epsilon, Summary(tuple(against(chain[None]) for chain in parameters)), against(parameters))


def _survivors(images: AttackedImages, attacks: Sequence[Attack], generator: torch.Generator) -> int:
    left = images.subset(~images.are_wrong(images.pixels))
    for attack in attacks:
        if len(left) == 0:
            return 0
        left = left.subset(~left.are_wrong(left.clipped(attack(left, generator))))
    return len(left)


class _Search:
    """The state of APGD for a batch; each image has its own step."""

    def __init__(self, images: AttackedImages, loss: Loss, start: Tensor) -> None:
        self._images, self._loss = images, loss
        self._here = self._before = self._best = start
        self._answer = self._best_answer = images.ascent(start, loss)
        self._eta = torch.full((len(start), 1, 1, 1), 2 * images.epsilon, device=start.device)
        self._grew = torch.zeros(len(start), device=start.device)
        self._since = 0
        self._kept_step = torch.zeros(len(start), dtype=torch.bool, device=start.device)
        self._last_best = self._answer.losses
        self.found = _where(self._answer.wrong, start, images.pixels)

    def step(self) -> None:
        aim = self._images.clipped(self._here + self._eta * self._answer.gradient.sign())
        momentum = (1 - APGD_MOMENTUM) * (self._here - self._before)
        moved = self._images.clipped(self._here + APGD_MOMENTUM * (aim - self._here) + momentum)
        answer = self._images.ascent(moved, self._loss)
        self._grew += answer.losses > self._answer.losses
        self._since += 1
        self._before, self._here, self._answer = self._here, moved, answer
        self.found = _where(answer.wrong, moved, self.found)
        better = answer.losses > self._best_answer.losses
        self._best = _where(better, moved, self._best)
        self._best_answer = _chosen(better, answer, self._best_answer)

    def review(self) -> None:
        """At a checkpoint: halve the step where progress has stopped, and go back to the best point there."""
        stuck = self._grew < APGD_PROGRESS * self._since
        unchanged = self._kept_step & (self._best_answer.losses <= self._last_best)
        halve = stuck | unchanged
        self._eta = torch.where(halve[:, None, None, None], self._eta / 2, self._eta)
        self._here = _where(halve, self._best, self._here)
        self._before = _where(halve, self._best, self._before)
        self._answer = _chosen(halve, self._best_answer, self._answer)
        self._kept_step, self._last_best = ~halve, self._best_answer.losses
        self._grew, self._since = torch.zeros_like(self._grew), 0


def _checkpoints(steps: int) -> set[int]:
    """ceil(p_j steps), p_0 = 0, p_1 = 0.22, p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06)."""
    parts = [0.0, 0.22]
    while parts[-1] < 1:
        parts.append(parts[-1] + max(parts[-1] - parts[-2] - 0.03, 0.06))
    return {math.ceil(part * steps) for part in parts[1:] if part <= 1}


def _where(chosen: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return torch.where(chosen[:, None, None, None], first, second)


def _chosen(chosen: Tensor, first: Ascent, second: Ascent) -> Ascent:
    return Ascent(
        torch.where(chosen, first.losses, second.losses),
        _where(chosen, first.gradient, second.gradient),
        torch.where(chosen, first.wrong, second.wrong),
    )


def _signs(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    return 2 * torch.randint(0, 2, shape, generator=generator, device=like.device).to(like.dtype) - 1


def _integers(below: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, below, (), generator=generator, device=generator.device)
