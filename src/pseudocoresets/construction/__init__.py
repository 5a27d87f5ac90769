"""Learning a pseudo-coreset: settings, the learner, its checkpoints and the loop."""

from pseudocoresets.construction.loop import construct
from pseudocoresets.construction.settings import ConstructionSettings

__all__ = ["ConstructionSettings", "construct"]
