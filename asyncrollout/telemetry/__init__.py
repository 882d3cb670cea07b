"""Metrics and traces of a live run, and where they go."""

from asyncrollout.telemetry.collector import MetricsCollector
from asyncrollout.telemetry.counters import LARGEST_REWARD, RunCounters
from asyncrollout.telemetry.prometheus import prometheus_text
from asyncrollout.telemetry.run_metrics import Gauges, RunMetrics, flat
from asyncrollout.telemetry.sinks import METRICS, JsonLines, Sink, TensorBoard, Tracker

__all__ = [
    "LARGEST_REWARD",
    "METRICS",
    "Gauges",
    "JsonLines",
    "MetricsCollector",
    "RunCounters",
    "RunMetrics",
    "Sink",
    "TensorBoard",
    "Tracker",
    "flat",
    "prometheus_text",
]
