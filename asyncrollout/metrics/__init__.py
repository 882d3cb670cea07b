"""The figures of a run while it goes on, and where they go."""

from asyncrollout.metrics.figures import Figures, Standing, flat
from asyncrollout.metrics.meter import Meter
from asyncrollout.metrics.prometheus import prometheus_text
from asyncrollout.metrics.sinks import METRICS, JsonLines, Sink, TensorBoard, Tracker

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
