"""Learning a pseudo-coreset: settings, the learner, its checkpoints and the loop."""

from pseudocoresets.construction.loop import ConstructionSettings, construct

__all__ = ["ConstructionSettings", "construct"]
