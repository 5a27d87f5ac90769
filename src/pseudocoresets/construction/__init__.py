"""Learning a pseudo-coreset: settings, the learner, its checkpoints and the loop."""

from pseudocoresets.construction.front import construct
from pseudocoresets.construction.incremental import merge, update
from pseudocoresets.construction.settings import ConstructionSettings

__all__ = ["ConstructionSettings", "construct", "merge", "update"]
