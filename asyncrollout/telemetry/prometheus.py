"""Figures in the text format of Prometheus."""

import re
from collections.abc import Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# By the name of a figure, without what follows a slash: its type, the name of the label for what follows, its help.
# What is counted since the run began is a counter; what was kept is none, since groups that grow stale are not kept.
_METRICS: dict[str, tuple[str, str, str]] = {
    "wanted_batches": ("gauge", "", "Batches that the run is to deliver."),
    "wanted_groups": ("gauge", "", "Groups that the run is to deliver."),
    "playing": ("gauge", "", "Groups under way."),
    "buffered": ("gauge", "", "Groups that wait to be delivered."),
    "stale": ("counter", "", "Groups that were kept and then grew too old."),
    "waiting_policy": ("gauge", "", "Rollouts that wait for the policy."),
    "waiting_env": ("gauge", "", "Rollouts that wait for their env."),
    "waiting_else": ("gauge", "", "Rollouts that wait for something else."),
    "queued": ("gauge", "", "Calls that wait for a worker."),
    "restarts": ("counter", "", "Workers that were replaced."),
    "retries": ("counter", "", "Calls and rollouts that were tried again."),
    "version": ("gauge", "", "Version of the policy's weights."),
    "keep_rate": ("gauge", "", "Share of the judged groups that were kept."),
    "seconds": ("gauge", "", "Seconds since the run began or was resumed."),
    "eta": ("gauge", "", "Seconds until the run is done."),
    "batches": ("counter", "", "Batches delivered."),
    "delivered": ("counter", "", "Groups delivered."),
    "groups": ("counter", "", "Groups judged."),
    "kept": ("gauge", "", "Groups kept."),
    "dropped": ("counter", "reason", "Groups dropped."),
    "lag": ("gauge", "", "Versions of the weights that the last batch was behind."),
    "rollouts": ("counter", "", "Rollouts that came to an end or failed."),
    "evaluated_rollouts": ("counter", "", "Rollouts of evaluations, which count in no other figure."),
    "errors": ("counter", "blame", "Rollouts that failed."),
    "success_rate": ("gauge", "", "Share of rollouts that succeeded, of those whose env reports it."),
    "turns": ("counter", "", "Turns played."),
    "invalid": ("counter", "", "Turns whose reply was not valid."),
    "tokens": ("counter", "", "Tokens sampled."),
    "turns_per_second": ("gauge", "", "Turns a second, recently."),
    "tokens_per_second": ("gauge", "", "Tokens a second, recently."),
    "policy_seconds": ("gauge", "of", "Seconds that recent calls of the policy took."),
    "env_seconds": ("gauge", "of", "Seconds that recent steps of envs took."),
    "reward_mean": ("gauge", "", "Mean reward of the run."),
    "reward_recent": ("gauge", "", "Mean reward of recent groups."),
    "reward_change": ("gauge", "", "Mean reward of recent groups less that of as many before them."),
    "reward_trend": ("gauge", "", "1 if the reward goes up, -1 if down, 0 if neither is clear."),
}
_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n"}


def prometheus_text(runs: Mapping[str, Mapping[str, float]]) -> str:
    """By the name of each run, its figures as `flat` gives them; what is not known is left out."""
    lines: list[str] = []
    for name, (kind, label, told) in _METRICS.items():
        family = f"asyncrollout_{name}_total" if kind == "counter" else f"asyncrollout_{name}"
        samples = [
            f"{family}{{{_labels({'run': run} | ({label: part} if label else {}))}}} {_number(value)}"
            for run, figures in runs.items()
            for figure, value in figures.items()
            for own, _, part in [figure.partition("/")]
            if own == name
        ]
        if samples:
            lines += [f"# HELP {family} {told}", f"# TYPE {family} {kind}", *samples]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    """A lone surrogate, which no encoding takes, is shown as an escape."""
    shown = value.encode("utf-8", "backslashreplace").decode()
    return re.sub(r'[\\"\n]', lambda code: _ESCAPES[code[0]], shown)


def _number(value: float) -> str:
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(str(value), str(value))
