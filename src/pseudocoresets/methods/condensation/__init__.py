"""Dataset condensation: synthetic data that train a network as the full data do, without a posterior in view."""
