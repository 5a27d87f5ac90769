"""Samples of a coreset's posterior, by protocol."""

from pseudocoresets.inference.sampling import PosteriorSamples, SamplingSettings, sample_posterior

__all__ = ["PosteriorSamples", "SamplingSettings", "sample_posterior"]
