"""Label distillation: real images that stay as they are, with labels that are learned (Bohdal et al. 2020).

With labels y (m, classes) of fixed real images x, a network takes W = ``steps`` steps on them, and the labels descend
the real data's loss where it arrives:

    theta_{t+1} = theta_t - eta grad_theta U(theta_t; A_t x, y),      t = 0 .. W-1
    L(y)        = - mean over a batch of real data of log p(y_real | x_real, theta_W)

The next iteration goes on from theta_W, and from time to time from a fresh initialisation. It is ``bptt``, whose code
it shares, with one chain, the exact gradient, and nothing learned but labels: a softmax that starts with probability
0.99 at each image's own class. A chain is restarted with a probability that makes it ``horizon`` steps old on average;
the authors restart theirs when the loss no longer falls.

Steps, step size and batch are those of the authors' code: 10 steps of 0.01, each on about half of the images where
there are several per class (``points_per_step``, in the preset ``paper``), and 1024 real images, for 400 epochs. Their
labels start uniform and are no softmax, and their network goes on by Adam; here labels start from the images' own
classes, and the network from where the differentiated steps end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pseudocoresets.gradients import GradientEstimator
from pseudocoresets.methods.bptt import BPTT


@dataclass(frozen=True)
class LabelDistillation(BPTT):
    """``steps`` differentiable steps on fixed images at the end of chains of mean length ``horizon``."""

    steps: int = 10
    step_size: float = 0.01
    horizon: int = 500
    chains: int = 1
    batch_size: int = 1024
    gradient: str | GradientEstimator = "stored"

    name: ClassVar[str] = "ld"
    learns_labels: ClassVar[bool] = True
    learns_points: ClassVar[bool] = False
