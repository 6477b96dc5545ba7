"""What turns losses into updates across ranks: DeepSpeed ZeRO 0 to 3 and a plain-DDP twin, behind the same methods."""

from training.engine.base import STATES, Engine, Slice, TensorSource
from training.engine.build import build_engine

__all__ = ["STATES", "Engine", "Slice", "TensorSource", "build_engine"]
