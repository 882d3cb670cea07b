"""Metrics in the text format of Prometheus."""

import re
from collections.abc import Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# By the name of a metric, up to a slash: its type, the name of the label for what follows the slash, its help.
# `kept` is not a counter, since groups that become stale no longer count.
_METRICS: dict[str, tuple[str, str, str]] = {
    "wanted_batches": ("gauge", "", "Batches that the run is to deliver."),
    "wanted_groups": ("gauge", "", "Groups that the run is to deliver."),
    "playing": ("gauge", "", "Groups in flight."),
    "buffered": ("gauge", "", "Groups waiting for delivery."),
    "stale": ("counter", "", "Groups that were kept and then became stale."),
    "waiting_policy": ("gauge", "", "Rollouts waiting for the policy."),
    "waiting_env": ("gauge", "", "Rollouts waiting for their env."),
    "waiting_score": ("gauge", "", "Rollouts waiting for their score."),
    "waiting_else": ("gauge", "", "Rollouts waiting for something else."),
    "queued": ("gauge", "", "Calls waiting for a worker."),
    "restarts": ("counter", "", "Workers replaced by this process."),
    "retries": ("counter", "", "Failed attempts at rollouts that are played again."),
    "shards": ("gauge", "", "Shards that are ready."),
    "nodes": ("gauge", "", "Machines that these run on."),
    "version": ("gauge", "", "Version of the policy's weights."),
    "keep_rate": ("gauge", "", "Share of judged groups that were kept."),
    "seconds": ("gauge", "", "Seconds since this process began or resumed the run."),
    "eta": ("gauge", "", "Estimated seconds until the run is complete."),
    "batches": ("counter", "", "Batches delivered."),
    "delivered": ("counter", "", "Groups delivered."),
    "groups": ("counter", "", "Groups judged."),
    "kept": ("gauge", "", "Groups kept."),
    "dropped": ("counter", "reason", "Groups dropped."),
    "lag": ("gauge", "", "How many versions of the weights the last batch was behind."),
    "rollouts": ("counter", "", "Rollouts that ended."),
    "evaluated_rollouts": ("counter", "", "Rollouts of evaluations, which count in no other figure."),
    "errors": ("counter", "blame", "Attempts at rollouts that failed."),
    "success_rate": ("gauge", "", "Share of rollouts that succeeded, among those whose env reports success."),
    "turns": ("counter", "", "Turns with a reply of the policy."),
    "invalid": ("counter", "", "Turns with an invalid reply, of attempts that ended."),
    "tokens": ("counter", "", "Tokens sampled."),
    "turns_per_second": ("gauge", "", "Recent turns per second."),
    "tokens_per_second": ("gauge", "", "Recent tokens per second."),
    "policy_seconds": ("gauge", "of", "Seconds that recent policy calls took."),
    "env_seconds": ("gauge", "of", "Seconds that recent env steps took."),
    "score_seconds": ("gauge", "of", "Seconds that recent rollouts waited for their score."),
    "reward_mean": ("gauge", "", "Mean reward of the groups judged."),
    "reward_recent": ("gauge", "", "Mean reward of recent groups."),
    "reward_change": ("gauge", "", "Mean reward of recent groups less that of as many before them."),
    "reward_trend": ("gauge", "", "1 if the reward goes up, -1 if down, 0 if the change is not significant."),
}
_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n"}


def prometheus_text(runs: Mapping[str, Mapping[str, float]]) -> str:
    """The metrics of each run, as `flat` gives them, by its name; unknown ones are left out."""
    lines: list[str] = []
    for name, (kind, label, help_text) in _METRICS.items():
        family = f"asyncrollout_{name}_total" if kind == "counter" else f"asyncrollout_{name}"
        samples = [
            f"{family}{{{_labels({'run': run} | ({label: part} if label else {}))}}} {_number(value)}"
            for run, figures in runs.items()
            for figure, value in figures.items()
            for own, _, part in [figure.partition("/")]
            if own == name
        ]
        if samples:
            lines += [f"# HELP {family} {help_text}", f"# TYPE {family} {kind}", *samples]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    """Lone surrogates, which cannot be encoded, are shown as escapes."""
    shown = value.encode("utf-8", "backslashreplace").decode()
    return re.sub(r'[\\"\n]', lambda code: _ESCAPES[code[0]], shown)


def _number(value: float) -> str:
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(str(value), str(value))
