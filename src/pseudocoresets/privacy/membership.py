"""Who was in the training data? Black-box attacks on predictions p(y | x).

The attacker asks for the prediction of an image with its label and sees how sure it is,

    phi = log p_y - log sum_{c != y} p_c,

which is more nearly Gaussian than the loss -log p_y and orders images in the same way.

    loss threshold   a member where phi is large (Yeom et al. 2018)
    LiRA             a member where phi is likelier under predictions that were made with the image than without it:
                     log N(phi; mu_in, s_in^2) - log N(phi; mu_out, s_out^2)  (Carlini et al. 2022), the means of each
                     image being those of shadows, made in the same way from halves of the data that hold it or not
"""

from __future__ import annotations

import torch
from torch import Tensor

from pseudocoresets.privacy.roc import Roc, roc

FEWEST_SHADOWS = 6
"""Without the pair that an attacked shadow belongs to, two with each image and two without."""
SHADOWS_FOR_OWN_VARIANCE = 64
"""With fewer, all images share one variance inside and one outside, as a few values tell little of it."""
SMALLEST_PROBABILITY = 1e-30
SMALLEST_VARIANCE = 1e-6


def sureness(probabilities: Tensor, labels: Tensor) -> Tensor:
    """phi (n,) of probabilities (n, classes), from the sum of the others: one less p_y would round to zero."""
    labels = labels.to(probabilities.device)
    own = probabilities.double().gather(1, labels[:, None]).squeeze(1)
    others = probabilities.double().scatter(1, labels[:, None], 0.0).sum(1)
    return (own.clamp_min(SMALLEST_PROBABILITY).log() - others.clamp_min(SMALLEST_PROBABILITY).log()).cpu()


def loss_threshold(sure: Tensor, inside: Tensor) -> Roc:
    """The attack that knows the predictions alone."""
    return roc(sure.numpy(), inside.numpy())


def likelihood_ratio(sure: Tensor, shadows: Tensor, inside: Tensor) -> Tensor:
    """LiRA's scores (n,) of ``sure`` (n,); ``shadows`` (k, n) are theirs, with the images that are ``inside``."""
    own_variance = len(shadows) >= SHADOWS_FOR_OWN_VARIANCE
    mean_in, variance_in = _moments(shadows, inside, own_variance)
    mean_out, variance_out = _moments(shadows, ~inside, own_variance)
    return _log_density(sure, mean_in, variance_in) - _log_density(sure, mean_out, variance_out)


def attack_file(sure: Tensor, members: Tensor, shadows: Tensor, inside: Tensor) -> Roc:
    """LiRA on one set of predictions."""
    return roc(likelihood_ratio(sure, shadows, inside).numpy(), members.numpy())


def attack_each_shadow(shadows: Tensor, inside: Tensor) -> Roc:
    """LiRA on each shadow in turn, the other pairs being its shadows: what the way of making it gives away.

    Members and others are then drawn at random from the same images, and there are as many times more of them. The
    attacked one's partner, which was made from the other half, is left out too: with it, a member would have one shadow
    fewer inside than outside, and the mean of fewer is farther from any value.
    """
    pairs = [(k, _without_pair(shadows, k), _without_pair(inside, k)) for k in range(len(shadows))]
    scores = [likelihood_ratio(shadows[k], others, within) for k, others, within in pairs]
    images = torch.arange(shadows.shape[1]).repeat(len(shadows))
    return roc(torch.cat(scores).numpy(), inside.flatten().numpy(), images.numpy())


def _without_pair(rows: Tensor, place: int) -> Tensor:
    first = place - place % 2
    return torch.cat([rows[:first], rows[first + 2 :]])


def _moments(values: Tensor, chosen: Tensor, own_variance: bool) -> tuple[Tensor, Tensor]:
    """Mean and variance of the chosen values of each column; the variance is that of all columns if not its own."""
    count = chosen.sum(0)
    mean = values.where(chosen, 0.0).sum(0) / count
    squares = (values - mean).square().where(chosen, 0.0).sum(0)
    variance = squares / (count - 1) if own_variance else squares.sum() / (count - 1).sum()
    return mean, variance.clamp_min(SMALLEST_VARIANCE)


def _log_density(values: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return -(values - mean).square() / (2 * variance) - variance.log() / 2
