"""The two readers of a journal, for resuming and for reports, give every event the same meaning."""

from hypothesis import given
from hypothesis import strategies as st

from asyncrollout.journal.events import (
    AnyEvent,
    Began,
    Cancelled,
    Delivered,
    Dispatched,
    Failed,
    Finished,
    Judged,
    TakenBack,
)
from asyncrollout.journal.history import RunHistory
from asyncrollout.journal.recorded_run import RecordedRun
from asyncrollout.trajectories import StopReason, group_of

GROUPS = ("g0", "g1", "g2", "eval0-g0")
UIDS = [f"{group}.{member}" for group in GROUPS for member in (0, 1)]
SETTINGS = {"group_size": 2, "seed": 7}

names = st.sampled_from(GROUPS)
uids = st.sampled_from(UIDS)
steps = st.one_of(
    st.tuples(st.just("dispatched"), uids),
    st.tuples(st.just("failed"), uids),
    st.tuples(st.just("finished"), uids),
    st.tuples(st.just("cancelled"), names),
    st.tuples(st.just("judged"), names, st.booleans(), st.integers(0, 1)),
    st.tuples(st.just("delivered"), names),
    st.tuples(st.just("taken_back"), st.integers(0, 3)),
    st.tuples(st.just("began"), st.sampled_from(["old", "new"]), st.none() | st.integers(0, 3)),
)


def event_of(step: tuple[object, ...], past: RunHistory, in_flight: set[str]) -> AnyEvent | None:
    """The event of a step, if a run could write it now."""
    match step:
        case ("dispatched", str(uid)):
            return Dispatched(uid=uid)
        case ("failed", str(uid)) if uid in in_flight:
            return Failed(uid=uid, error="EnvError: broken")
        case ("finished", str(uid)) if uid in in_flight:
            return Finished(uid=uid, reward=1.0, stop_reason=StopReason.TERMINATED, turns=1, tokens=1, seconds=1.0)
        case ("cancelled", str(group)):
            return Cancelled(group=group)
        case ("judged", str(group), bool(keep), int(more)) if not group.startswith("eval"):  # which nobody judges
            return Judged(group=group, keep=keep, reason="" if keep else "constant_reward", more=more)
        case ("delivered", str(group)) if not group.startswith("eval"):
            return Delivered(batch=past.next_batch, groups=[group])
        case ("taken_back", int(batch)) if batch < past.next_batch:
            return TakenBack(batch=batch)
        case ("began", str(policy), batch) if batch is None or (isinstance(batch, int) and batch <= past.next_batch):
            return Began(given={**SETTINGS, "policy": policy}, batch=batch)
    return None


@given(st.lists(steps, max_size=40))
def test_readers_agree(program: list[tuple[object, ...]]) -> None:
    past, run = RunHistory(), RecordedRun()
    in_flight: set[str] = set()
    for step in [("began", "old", None), *program]:
        event = event_of(step, past, in_flight)
        if event is None:
            continue
        past.add(event)
        run.add(event)
        if isinstance(event, Dispatched):
            in_flight.add(event.uid)
        elif isinstance(event, Failed | Finished):
            in_flight.discard(event.uid)
        elif isinstance(event, Began):
            in_flight.clear()
        elif isinstance(event, Cancelled):
            in_flight -= {uid for uid in in_flight if group_of(uid) == event.group}
        assert run.given == past.given
        assert {group: one.keep for group, one in run.verdicts.items()} == {
            group: one.keep for group, one in past.verdicts.items()
        }
        assert run.batches.keys() == {one.delivered.batch for one in past._batches}


def test_a_verdict_without_the_others_of_its_round_is_none() -> None:
    run = RecordedRun()
    run.add(Began(given=SETTINGS))
    run.add(Judged(group="g0", keep=True, reason="", more=1))
    assert not run.verdicts
    run.add(Judged(group="g1", keep=False, reason="worse"))
    assert [*run.verdicts] == ["g0", "g1"]
    run.add(Judged(group="g2", keep=True, reason="", more=1))
    run.add(Began(given=SETTINGS))
    run.add(Judged(group="g3", keep=True, reason=""))
    assert [*run.verdicts] == ["g0", "g1", "g3"]


def test_settings_are_those_given_last() -> None:
    run = RecordedRun()
    run.add(Began(given={**SETTINGS, "policy": "a"}))
    run.add(Began(given={"policy": "b"}))
    assert run.given == {**SETTINGS, "policy": "b"}
