"""The figures of a run while it goes on, and where they go."""

from asyncrollout.telemetry.collector import Meter
from asyncrollout.telemetry.prometheus import prometheus_text
from asyncrollout.telemetry.run_metrics import Figures, Standing, flat
from asyncrollout.telemetry.sinks import METRICS, JsonLines, Sink, TensorBoard, Tracker

__all__ = [
    "METRICS",
    "Figures",
    "JsonLines",
    "Meter",
    "Sink",
    "Standing",
    "TensorBoard",
    "Tracker",
    "flat",
    "prometheus_text",
]
