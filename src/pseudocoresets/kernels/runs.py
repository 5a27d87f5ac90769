"""Whole runs: a warm-up that is thrown away, then draws."""

from __future__ import annotations

from torch import Tensor

from pseudocoresets.core.energy import Target
from pseudocoresets.core.errors import InputError
from pseudocoresets.core.progress import Progress, Silent, task
from pseudocoresets.core.seeds import generator_for
from pseudocoresets.kernels.adaptation import warm_up
from pseudocoresets.kernels.chain import advance, run_chain
from pseudocoresets.kernels.kernel import AnyKernel, Run, RunsItself, is_adjusted


def sample_chains(
    kernel: AnyKernel,
    target: Target,
    position: Tensor,
    draws: int = 1000,
    warmup: int = 300,
    seed: int = 0,
    thin: int = 1,
    progress: Progress | None = None,
) -> Run:
    """Every ``thin``-th position of each chain after ``warmup`` steps, ``draws`` of them.

    The warm-up adapts the step size of a kernel that accepts or rejects. A kernel that runs itself (NUTS) does it in
    its own way, and needs no thinning.

    Args:
        position: Where the chains start, (chains, size).
    """
    if position.ndim != 2:
        raise InputError(f"Chains need starts of shape (chains, size); got {tuple(position.shape)}.")
    if min(draws, warmup, thin) < 1:
        raise InputError(f"A run needs at least one draw and one warm-up step; got {draws} and {warmup}.")
    if isinstance(kernel, RunsItself):
        return kernel.run(target, position, draws, warmup, seed, progress)
    generator, steps = generator_for(seed, "chains", device=position.device), draws * thin
    with task(progress or Silent(), "drawing from the posterior", warmup + steps) as shown:
        if is_adjusted(kernel):
            kernel, position = warm_up(kernel, position, target, warmup, generator, on_step=shown.advance)
        else:
            position = advance(kernel, position, target, warmup, generator, shown.advance)
        kept = range(thin, steps + 1, thin)
        chain = run_chain(kernel, position, target, steps, generator, kept, on_step=shown.advance)
    each = position.new_ones(len(position))
    return Run(chain.kept.transpose(0, 1), chain.acceptance, kernel.step_size * each, 0 * each, steps * each)
