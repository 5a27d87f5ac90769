"""Saying honestly how good a posterior is."""

from pseudocoresets.evaluation.calibration import Calibrated
from pseudocoresets.evaluation.distances import Distances, distance
from pseudocoresets.evaluation.function_space import Agreement, Predictions, agreement
from pseudocoresets.evaluation.metrics import METRICS, Metric, Reliability, all_metrics, reliability
from pseudocoresets.evaluation.report import EvaluationReport, evaluate, pooled, score
from pseudocoresets.evaluation.scores import Summary

__all__ = [
    "METRICS",
    "Agreement",
    "Calibrated",
    "Distances",
    "EvaluationReport",
    "Metric",
    "Predictions",
    "Reliability",
    "Summary",
    "agreement",
    "all_metrics",
    "distance",
    "evaluate",
    "pooled",
    "reliability",
    "score",
]
