"""Samples of a coreset's posterior, by protocol."""

from pseudocoresets.inference.models import gaussian_moments, sample_model_posterior
from pseudocoresets.inference.samples import PosteriorSamples
from pseudocoresets.inference.sampling import sample_posterior
from pseudocoresets.inference.settings import SamplingSettings

__all__ = ["PosteriorSamples", "SamplingSettings", "gaussian_moments", "sample_model_posterior", "sample_posterior"]
