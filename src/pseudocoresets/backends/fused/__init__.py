"""The fast backend on a GPU: what it computes is what the plain one computes, in few launches.

ConvNets of instance norm, ReLU and average pooling have kernels of their own, in bfloat16; steps of other networks, and
potentials for samplers that accept or reject, are captured as they are, but for group norms. It needs Triton.
"""

from pseudocoresets.backends.fused.backend import FusedBackend

__all__ = ["FusedBackend"]
