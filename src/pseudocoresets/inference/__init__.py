"""Samples of a coreset's posterior, by protocol."""

from pseudocoresets.inference.sampling import PosteriorSamples, sample_posterior
from pseudocoresets.inference.settings import SamplingSettings

__all__ = ["PosteriorSamples", "SamplingSettings", "sample_posterior"]
