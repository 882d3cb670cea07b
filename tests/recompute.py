"""The figures of a run, recomputed from its raw files: slow, simple, and without any code of the package.

Whoever wonders what a figure means can read it here; `docs/figures.md` has the same in words.
"""

import json
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

Json = dict[str, Any]


def lines(path: Path) -> list[Json]:
    """All lines but an unfinished last one."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def group_of(uid: str) -> str:
    return uid.rpartition(".")[0]


def is_trained(uid: str) -> bool:
    return not uid.startswith("eval")


def mean(values: Any) -> float | None:
    values = [*values]
    return sum(values) / len(values) if values else None


def tokens_of_reply(reply: Json) -> int:
    ids = reply.get("token_ids")
    return len(ids) if ids is not None else int(reply.get("usage", {}).get("completion", 0))


def tokens_of_turn(turn: Json) -> int:
    ids = turn["token_ids"]
    return int(ids["shape"][0] if ids is not None else turn["usage"]["completion"])


class Recomputed:
    """All figures of a run that neither changed its agent nor is still playing."""

    def __init__(self, directory: Path) -> None:
        self.events = lines(directory / "journal.jsonl")
        self.records: dict[str, Json] = {}
        self.record_counts: Counter[str] = Counter()
        for record in lines(directory / "trajectories.jsonl"):
            self.records[record["uid"]] = record
            self.record_counts[record["uid"]] += 1
        self._walk()
        self._judge()
        self._deliver()

    # Plays: one for each attempt at a rollout.

    def _walk(self) -> None:
        self.plays: list[Json] = []
        process, last, void = 0, 0.0, set[str]()
        self.began: list[float] = []
        self.ended: list[float] = []  # when the last event of each process happened
        for event in self.events:
            kind, uid = event["event"], event.get("uid", "")
            now = [play for play in self.plays if play["uid"] == uid and play["end"] == "open"]
            if kind == "began":
                if process:
                    self.ended.append(last)
                    for play in self.plays:
                        if play["stretches"][-1][1] is None:
                            play["stretches"][-1][1] = last
                process += 1
                self.began.append(event["at"])
            elif kind == "dispatched":
                if group_of(uid) in void:  # nothing of it counts any more
                    void.discard(group_of(uid))
                    for play in self.plays:
                        if group_of(play["uid"]) == group_of(uid) and play["end"] == "finished":
                            play["end"] = "cancelled"
                if now and now[0]["process"] < process:
                    now[0]["process"] = process
                    now[0]["stretches"].append([event["at"], None])
                else:
                    self._play(uid, process, event["at"])
            elif kind == "turn" and now:
                now[0]["replies"].add(event["turn"])
                now[0]["sampled"] += tokens_of_reply(event["reply"])
            elif kind in ("failed", "finished"):
                if not now:  # of a process that was killed before it wrote more than the record
                    now = [self._play(uid, process, event["at"])]
                now[0].update(end=kind, turns=event["turns"], tokens=event["tokens"], event=event)
                now[0]["stretches"][-1][1] = now[0]["stretches"][-1][1] or event["at"]
            elif kind == "cancelled":
                void.add(event["group"])
                for play in self.plays:
                    if group_of(play["uid"]) == event["group"] and play["end"] == "open":
                        play["end"] = "cancelled"
                        play["stretches"][-1][1] = play["stretches"][-1][1] or event["at"]
            last = max(last, event["at"])
        self.ended.append(last)
        finished = Counter(event["uid"] for event in self.events if event["event"] == "finished")
        for uid, count in self.record_counts.items():
            if count > finished[uid] and not any(play["uid"] == uid and play["end"] == "open" for play in self.plays):
                self._play(uid, process, last)["stretches"][0][1] = last
        for play in self.plays:
            play["turns"] = max(play["turns"], len(play["replies"]))
            play["tokens"] = max(play["tokens"], play["sampled"])
            if play["end"] == "open" and self.record_counts[play["uid"]] > finished[play["uid"]]:
                play["end"] = "finished"  # killed before the event was written
                turns = self.records[play["uid"]]["turns"]
                play["turns"] = max(play["turns"], len(turns))
                play["tokens"] = max(play["tokens"], sum(map(tokens_of_turn, turns)))
                play["stretches"][-1][1] = play["stretches"][-1][1] or last
        self.standing = {play["uid"]: play for play in self.plays if play["end"] == "finished"}

    def _play(self, uid: str, process: int, at: float) -> Json:
        self.plays.append({
            "uid": uid, "process": process, "end": "open", "stretches": [[at, None]], "replies": set(), "sampled": 0,
            "turns": 0, "tokens": 0,
        })  # fmt: skip
        return self.plays[-1]

    def clock(self, at: float) -> float:
        """Seconds of running: of all processes up to then."""
        total = 0.0
        for began, ended in zip(self.began, self.ended, strict=True):
            total += max(min(at, ended) - began, 0.0)
        return total

    @property
    def seconds(self) -> float:
        return self.clock(self.ended[-1])

    def plays_of(self, prefix: str = "g", end: str = "") -> list[Json]:
        return [play for play in self.plays if play["uid"].startswith(prefix) and end in ("", play["end"])]

    # Groups: verdicts and batches.

    def _judge(self) -> None:
        self.verdicts: dict[str, Json] = {}
        waiting: list[Json] = []
        for event in self.events:
            if event["event"] == "judged":
                waiting = [one for one in waiting if one["group"] != event["group"]] + [event]
                if not event["more"]:
                    self.verdicts.update({one["group"]: one for one in waiting})
                    waiting = []
            elif event["event"] == "began":
                waiting = []
            elif event["event"] == "cancelled":
                waiting = [one for one in waiting if one["group"] != event["group"]]
                self.verdicts.pop(event["group"], None)

    def _deliver(self) -> None:
        self.batches: dict[int, Json] = {}
        self.gone: set[str] = set()  # dropped on the way to a batch
        weights, rewound = 0, set[str]()
        for event in self.events:
            match event["event"]:
                case "weights":
                    weights = event["weights"]
                case "delivered":
                    self.batches[event["batch"]] = {**event, "weights": weights}
                case "taken_back":
                    self.batches.pop(event["batch"], None)
                case "dropped":
                    self.gone |= {*event["groups"]}
                case "began" if event["batch"] is not None:
                    again = sorted(index for index in self.batches if index >= event["batch"])
                    weights = self.batches[again[0]]["weights"] if again else weights
                    for index in again:
                        rewound |= {*self.batches.pop(index)["dropped"]}
        self.delivered = [group for _, batch in sorted(self.batches.items()) for group in batch["groups"]]
        self.gone |= rewound.union(*(batch["dropped"] for batch in self.batches.values())) - {*self.delivered}

    def members(self, group: str) -> list[Json]:
        """The records of a group that count."""
        return [self.records[uid] for uid in self.standing if group_of(uid) == group]

    def valid(self, group: str) -> list[Json]:
        return [one for one in self.members(group) if one["error"] is None]

    def reward(self, group: str) -> float | None:
        return mean(one["reward"] for one in self.valid(group))

    def mean_reward(self, groups: Any) -> float | None:
        return mean(reward for group in groups if (reward := self.reward(group)) is not None)

    # Success: over all rollouts of an env.

    @staticmethod
    def reported(record: Json) -> bool | None:
        said = [turn["info"].get("success") for turn in record["turns"]]
        known = [one for one, turn in zip(said, record["turns"], strict=True) if turn["valid"] and one is not None]
        return bool(said[-1]) if said and said[-1] is not None and known else None

    def passed(self, record: Json, among: list[Json]) -> bool:
        if record["error"] is not None:
            return False
        if (said := self.reported(record)) is not None:
            return said
        mates = [one for one in among if one["env"] == record["env"] and one["error"] is None]
        silent = all(self.reported(one) is None for one in mates)
        return (
            silent and record["reward"] > 0 and any(one["stop_reason"] in ("terminated", "truncated") for one in mates)
        )

    def pass_at(self, groups: Any, k: int) -> float | None:
        among = [self.records[uid] for uid in self.standing]
        rates = []
        for group in groups:
            valid = self.valid(group)
            if len(valid) >= k:
                won = sum(self.passed(one, among) for one in valid)
                rates.append(1 - math.comb(len(valid) - won, k) / math.comb(len(valid), k))
        return mean(rates)

    # The report.

    @property
    def judged(self) -> list[str]:
        return [group for group in self.verdicts if self.members(group)]

    def tiles(self) -> Json:
        costs = {name: sum(play[name] for play in self.plays_of()) for name in ("turns", "tokens")}
        unit = "tokens" if costs["tokens"] else "turns"
        used = sum(self.standing[one["uid"]][unit] for group in self.delivered for one in self.members(group))
        kept = [self.verdicts[group]["keep"] for group in self.judged]
        return {
            "Reward": self.mean_reward(self.judged), "Pass rate": self.pass_at(self.judged, 1),
            "Groups kept": mean(map(float, kept)), "Batches": len(self.batches),
            "Rollouts": len([uid for uid in self.standing if is_trained(uid)]), "Turns": costs["turns"],
            "Tokens": costs["tokens"], "Time": self.seconds, "Not delivered": 1 - used / costs[unit],
        }  # fmt: skip

    def lost(self) -> dict[str, tuple[int, int, int]]:
        """Of attempts without a record: how many, their turns, their tokens."""
        names = {"unfinished": "open", "failed attempts": "failed", "cancelled attempts": "cancelled"}
        found = {}
        for name, end in names.items():
            if plays := self.plays_of(end=end):
                found[name] = (len(plays), sum(one["turns"] for one in plays), sum(one["tokens"] for one in plays))
        return found

    def share_kept(self) -> list[tuple[int, float]]:
        found = []
        for index, batch in sorted(self.batches.items()):
            kept = [self.verdicts[group]["keep"] for group in batch["groups"]]
            found.append((index, sum(kept) / (len(kept) + len(batch["dropped"]))))
        return found

    def rewards_by_batch(self) -> list[tuple[int, float | None, float | None]]:
        """Of the groups delivered, and of these and those dropped on the way."""
        return [
            (index, self.mean_reward(batch["groups"]), self.mean_reward([*batch["groups"], *batch["dropped"]]))
            for index, batch in sorted(self.batches.items())
        ]

    def mean_lengths(self) -> tuple[float | None, float | None]:
        """Turns of all rollouts of training on record, and of those that were delivered."""
        everything = [self.records[uid] for uid in self.standing if is_trained(uid)]
        given = [one for group in self.delivered for one in self.members(group)]
        return mean(len(one["turns"]) for one in everything), mean(len(one["turns"]) for one in given)

    def lags(self) -> list[tuple[int, int, float]]:
        """Of each batch, how far behind its oldest rollout is, and how far its rollouts are on average."""
        found = []
        for index, batch in sorted(self.batches.items()):
            records = [one for group in batch["groups"] for one in self.members(group)]
            versions = [min(turn["version"] for turn in one["turns"]) for one in records if one["turns"]]
            behind = [max(batch["weights"] - version, 0) for version in versions]
            found.append((index, max(behind), sum(behind) / len(behind)))
        return found

    def llm_seconds(self) -> list[float]:
        return [
            turn["policy_seconds"]
            for uid in self.standing if is_trained(uid)
            for turn in self.records[uid]["turns"]
            if turn["policy_seconds"] or not turn["replayed"]
        ]  # fmt: skip

    def in_flight_seconds(self) -> float:
        """Of all attempts of training, in seconds of running."""
        last = self.ended[-1]
        return sum(
            self.clock(last if end is None else end) - self.clock(began)
            for play in self.plays_of() for began, end in play["stretches"]
        )  # fmt: skip

    def evaluations(self) -> dict[str, Json]:
        found = {}
        for event in self.events:
            if event["event"] == "evaluating":
                name, k = event["name"], event["k"]
                groups = sorted({group_of(uid) for uid in self.standing if uid.startswith(f"{name}-")})
                whole = [group for group in groups if len(self.members(group)) == k]
                plays = self.plays_of(f"{name}-")
                found[name] = {
                    "tasks": len(whole), "k": k, "reward": self.mean_reward(whole), "pass@1": self.pass_at(whole, 1),
                    "pass@k": self.pass_at(whole, k), "attempts": len(plays),
                    "failed": sum(one["error"] is not None for group in whole for one in self.members(group)),
                    "turns": sum(play["turns"] for play in plays), "tokens": sum(play["tokens"] for play in plays),
                }  # fmt: skip
        return found

    # The metrics, and where a resumed run continues them.

    def metrics(self) -> Json:
        trained = [event for event in self.events if is_trained(event.get("uid", ""))]
        ends = [event for event in trained if event["event"] in ("finished", "failed")]
        finished = [event for event in ends if event["event"] == "finished"]
        stale = [group for group in self.gone if group not in self.verdicts or self.verdicts[group]["keep"]]
        reasons = Counter(one["reason"] or "dropped" for one in self.verdicts.values() if not one["keep"])
        evaluated = [
            one for one in self.events if one["event"] in ("finished", "failed") and not is_trained(one["uid"])
        ]
        return {
            "rollouts": len(finished), "retries": len(ends) - len(finished),
            "errors": sum(event["error"] is not None for event in ends),
            "invalid": sum(event["invalid"] for event in ends),
            "turns": sum(play["turns"] for play in self.plays_of()),
            "tokens": sum(play["tokens"] for play in self.plays_of()),
            "groups": len(self.verdicts) + sum(group not in self.verdicts for group in stale),
            "kept": sum(one["keep"] for one in self.verdicts.values()) - sum(group in self.verdicts for group in stale),
            "dropped": dict(reasons + Counter(stale=len(stale))), "stale": len(stale), "batches": len(self.batches),
            "delivered": len(self.delivered), "evaluated_rollouts": len(evaluated),
            "reward_mean": self.mean_reward(self.judged),
        }  # fmt: skip


def t_interval(values: list[float]) -> tuple[float, float] | None:
    """Student's, with its quantile found by integration."""
    if len(values) < 2 or np.ptp(values) < 1e-12:
        return None
    half = t_quantile(len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return float(np.mean(values) - half), float(np.mean(values) + half)


def t_quantile(freedom: int) -> float:
    """Beyond which 2.5 % lie: the density is integrated from 0 until 47.5 % are reached."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    at = np.linspace(0, 15, 300_001)
    density = scale * (1 + at**2 / freedom) ** (-(freedom + 1) / 2)
    reached = np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(at))
    return float(at[1:][np.searchsorted(reached, 0.475)])


def area_between(points: list[list[float]]) -> float:
    """Of a plot's area: the height of each bin, times its width."""
    width = points[1][0] - points[0][0] if len(points) > 1 else 0.0
    assert all(math.isclose(right[0] - left[0], width, rel_tol=1e-6) for left, right in pairwise(points))
    return sum((high - low) * width for _, low, high in points)
