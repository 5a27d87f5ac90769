"""Saying honestly how good a posterior is."""

from pseudocoresets.evaluation.evaluate import EvaluationReport, Summary, evaluate, pooled, score
from pseudocoresets.evaluation.metrics import METRICS, Metric, Reliability, all_metrics, reliability

__all__ = [
    "METRICS",
    "EvaluationReport",
    "Metric",
    "Reliability",
    "Summary",
    "all_metrics",
    "evaluate",
    "pooled",
    "reliability",
    "score",
]
