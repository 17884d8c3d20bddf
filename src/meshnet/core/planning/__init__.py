"""Who runs which layers, and how fast it will be: decided before anything is loaded."""

from meshnet.core.planning.leaving import LeftOut
from meshnet.core.planning.mesh import HEAD, Mesh
from meshnet.core.planning.planning import NoPlan, Plan, assignments, plan
from meshnet.core.planning.predicting import (
    Cutting,
    HopPrediction,
    Prediction,
    predict,
)
from meshnet.core.planning.shape import LayerShape, ModelShape, Wanted
from meshnet.core.planning.sizing import Attention
from meshnet.core.planning.times import HopTime

__all__ = [
    "HEAD",
    "Attention",
    "Cutting",
    "HopPrediction",
    "HopTime",
    "LayerShape",
    "LeftOut",
    "Mesh",
    "ModelShape",
    "NoPlan",
    "Plan",
    "Prediction",
    "Wanted",
    "assignments",
    "plan",
    "predict",
]
