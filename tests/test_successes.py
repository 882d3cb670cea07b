"""Which rollouts succeeded: what envs report, and what follows for those that were cut off."""

import pytest

from asyncrollout import StopReason, Trajectory, Turn
from asyncrollout.rollouts.evaluation import Evaluation
from asyncrollout.successes import Successes, result_of, succeeded
from asyncrollout.trajectories import Group

DONE, CUT = StopReason.TERMINATED, StopReason.TURNS


def played(
    uid: str,
    reward: float,
    success: bool | None = None,
    stop: StopReason = DONE,
    *,
    env: str = "maze",
    valid: bool = True,
) -> Trajectory:
    """An env that reports success at its end only; an invalid reply has `success` false in its info."""
    info = {} if success is None else {"success": success}
    return Trajectory(uid, env, 0, [Turn("a", reward=reward), Turn("b", info=info, valid=valid)], reward, stop)


def test_cut_off_without_a_report_is_no_success() -> None:
    cut = [played(f"g.{member}", 0.5, stop=CUT) for member in range(4)]
    assert succeeded(cut) == set()
    assert Evaluation(4, [Group("g", cut)]).pass_at(1) == 0.0
    assert succeeded([*cut, played("g.4", 1.0, True), played("g.5", 1.0, False)]) == {"g.4"}


def test_rewards_count_where_an_env_never_reports() -> None:
    silent = [
        played("a", 0.5),
        played("b", 0.0),
        played("c", 0.5, stop=CUT),
        played("d", 1.0, stop=StopReason.TRUNCATED),
    ]
    assert succeeded(silent) == {"a", "c", "d"}
    assert Successes(map(result_of, silent)).rate is None


def test_envs_are_decided_one_by_one() -> None:
    both = [played("a", 1.0, env="silent"), played("b", 1.0, stop=CUT), played("c", 0.0, True)]
    assert succeeded(both) == {"a", "c"}
    assert Successes(map(result_of, both)).rate == 0.5  # of the env that reports


@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_invalid_reply_reports_nothing_of_the_env(reward: float) -> None:
    """It never reaches the env, whose other rollouts are decided by their rewards."""
    both = [played("a", reward, False, stop=CUT, valid=False), played("b", 1.0)]
    assert succeeded(both) == ({"a", "b"} if reward > 0 else {"b"})
