"""Sokoban in words."""

from asyncrollout.text.replies import turn_format
from asyncrollout.types import TextOptions
from asyncrollout_envs.grids import GridText
from asyncrollout_envs.sokoban.boards import ACTIONS, NAMES
from asyncrollout_envs.sokoban.env import Sokoban
from asyncrollout_envs.sokoban.rooms import Room
from asyncrollout_envs.sokoban.solver import solve

_RULES = """\
You are solving a Sokoban puzzle. You are the player, and must push every box onto a target.
You can push one box at a time, and never pull. A box in a corner is lost. You cannot walk through walls or boxes.

{legend}

Each action costs 0.1. A box on a target gains 1, a box off it loses 1, the last one gains 10 more.
Your actions are: Up, Down, Left, Right."""


class SokobanText(GridText[Sokoban]):
    """The expert follows the room's own solution, or searches."""

    names = NAMES

    def __init__(self, env: Sokoban, options: TextOptions) -> None:
        super().__init__(env, options)
        if options.max_actions_per_traj is not None:
            env.limit_actions(options.max_actions_per_traj)
        self._plans: dict[tuple[Room, int, int], list[int]] = {}  # the moves to come, in each state on the way
        self._lost: tuple[Room, int] | None = None  # the room and the boxes that no solution was found for

    def system_prompt(self) -> str:
        return f"{_RULES.format(legend=self.legend('the room'))}\n\n{turn_format(self._options, 'Right')}"

    def solve(self) -> str:
        moves = self._moves_to_come()[: self._options.max_actions_per_turn]
        told = f" {self._options.separator} ".join(map(self.tell, moves))
        return f"<think>This brings the boxes towards the targets.</think><answer>{told}</answer>"

    def _moves_to_come(self) -> list[int]:
        env = self._env
        room, player, boxes = env.room, env.player, env.boxes
        if (room, player, boxes) not in self._plans:
            at_start = (player, boxes) == (room.player, room.boxes)
            moves = list(room.solution) if at_start else []
            if not moves and self._lost != (room, boxes):
                moves = solve(room.board, player, boxes) or []
            if not moves:
                self._lost = room, boxes
                moves = self._any_move()
            self._plans = {}
            for at, move in enumerate(moves):
                self._plans[room, player, boxes] = moves[at:]
                player, boxes = room.board.after(player, boxes, move)
        return self._plans[env.room, env.player, env.boxes]

    def _any_move(self) -> list[int]:
        """For a room that cannot be solved any more."""
        env = self._env
        works = (move for move in ACTIONS if env.room.board.after(env.player, env.boxes, move)[0] != env.player)
        return [next(works, ACTIONS[0])]
