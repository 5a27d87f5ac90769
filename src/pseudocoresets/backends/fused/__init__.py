"""The fast backend on a GPU: what it computes is what the plain one computes, in bfloat16 and in few launches.

It applies to ConvNets of instance norm, ReLU and average pooling, and needs Triton; everything else goes the plain way.
"""

from pseudocoresets.backends.fused.backend import FusedBackend

__all__ = ["FusedBackend"]
