"""A function of tensors and its gradients, captured as one CUDA graph; on a CPU, simply computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pseudocoresets.backends.fused.capture import captured

WARM_UPS = 2


def value_and_gradients(
    function: Callable[..., Tensor], tensors: Mapping[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """``function(**tensors)``, and the gradients of its sum in those tensors that ask for one, without a graph."""
    wanted = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
    with torch.enable_grad():
        value = function(**tensors)
        total = value.sum()
    found = torch.autograd.grad(total, list(wanted.values()))
    return value.detach(), dict(zip(wanted, found, strict=True))


class CapturedFunction:
    """The same for tensors of these shapes; the function depends on nothing else that changes."""

    def __init__(self, function: Callable[..., Tensor], tensors: Mapping[str, Tensor]) -> None:
        self._function = function
        self._inputs = {
            name: tensor.detach().clone().requires_grad_(tensor.requires_grad) for name, tensor in tensors.items()
        }
        self._value = torch.zeros(())
        self._gradients: dict[str, Tensor] = {}
        self._graph = self._capture()

    def __call__(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Copies of the value and of the gradients at other tensors; within a larger capture, a part of that."""
        if self._graph is not None and torch.cuda.is_current_stream_capturing():
            return value_and_gradients(self._function, tensors)
        with torch.no_grad():
            for name, tensor in self._inputs.items():
                tensor.copy_(tensors[name])
        if self._graph is None:
            self._work()
        else:
            self._graph.replay()
        return self._value.clone(), {name: gradient.clone() for name, gradient in self._gradients.items()}

    def _work(self) -> None:
        self._value, self._gradients = value_and_gradients(self._function, self._inputs)

    def _capture(self) -> torch.cuda.CUDAGraph | None:
        if not any(tensor.is_cuda for tensor in self._inputs.values()):
            return None

        def warm_up() -> None:
            for _ in range(WARM_UPS):
                self._work()

        return captured(self._work, warm_up)
