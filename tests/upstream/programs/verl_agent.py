"""verl-agent's own collector, reward manager, advantages and validation, on our environments and our batches.

Usage: python verl_agent.py PROGRAM, with verl-agent's sources in PYTHONPATH. A scripted model stands in for the GPU
engine, and a tokenizer of bytes for a model's; all else is verl-agent's own.
"""

import copy
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import verl
from agent_system.multi_turn_rollout import TrajectoryCollector as TheirCollector
from agent_system.multi_turn_rollout import adjust_batch
from agent_system.reward_manager import EpisodeRewardManager
from gigpo import core_gigpo
from omegaconf import OmegaConf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2VLImageProcessor
from verl import DataProto
from verl.trainer.ppo import ray_trainer
from verl.trainer.ppo.ray_trainer import apply_invalid_action_penalty

from asyncrollout import advantages
from asyncrollout.dropin.verl_agent import TrajectoryCollector, make_envs

SPECIAL = [
    "<pad>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MOVES = ("up", "down", "left", "right", "fly", "still")


def make_tokenizer() -> Any:
    """Of bytes, in transformers' own class."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = {token: place for place, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=tokens, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<|im_end|>", additional_special_tokens=SPECIAL[1:]
    )
    made.chat_template = TEMPLATE
    return made


def make_processor(tokenizer: Any) -> Any:
    """With the image processor of Qwen2-VL."""
    return SimpleNamespace(image_processor=Qwen2VLImageProcessor(), tokenizer=tokenizer, image_token="<|image_pad|>")


def make_config(name: str, *, mode: str = "tiny_rgb_array", **changes: Any) -> Any:
    """verl-agent's own file, with a small batch."""
    config = OmegaConf.load(Path(verl.__file__).parent / "trainer" / "config" / "ppo_trainer.yaml")
    settings = {
        "env": {"env_name": name, "max_steps": 6, "history_length": 2, "rollout": {"n": 3}, "sokoban": {"mode": mode}},
        "data": {"train_batch_size": 2, "val_batch_size": 4, "max_prompt_length": 6000, "truncation": "left"},
        "actor_rollout_ref": {
            "actor": {"ppo_mini_batch_size": 8, "ppo_micro_batch_size_per_gpu": 4},
            "ref": {"log_prob_micro_batch_size_per_gpu": 4},
            "rollout": {"log_prob_micro_batch_size_per_gpu": 4},
        },
        "trainer": {"n_gpus_per_node": 2, "nnodes": 1},
    }
    return OmegaConf.merge(config, settings, changes)


class Model:
    """Gives what verl's rollout workers give; its replies follow from the prompts, or from chance."""

    world_size = 4
    width = 64

    def __init__(self, tokenizer: Any, chance: np.random.Generator | None = None) -> None:
        self.tokenizer = tokenizer
        self.chance = chance
        self.asked: list[int] = []

    def generate_sequences(self, prompts: Any) -> Any:
        assert isinstance(prompts, DataProto)
        assert len(prompts) % self.world_size == 0
        self.asked.append(len(prompts))
        rows = [self.encode(self.reply([*map(int, ids)])) for ids in prompts.non_tensor_batch["raw_prompt_ids"]]
        pad = self.tokenizer.pad_token_id
        responses = torch.tensor([row + [pad] * (self.width - len(row)) for row in rows])
        ids, mask, positions = (prompts.batch[key] for key in ("input_ids", "attention_mask", "position_ids"))
        later = torch.arange(1, self.width + 1).expand(*positions.shape[:-1], -1)
        return DataProto.from_dict(
            {
                "prompts": ids,
                "responses": responses,
                "input_ids": torch.cat([ids, responses], dim=-1),
                "attention_mask": torch.cat([mask, (responses != pad).long()], dim=-1),
                "position_ids": torch.cat([positions, positions[..., -1:] + later], dim=-1),
            }
        )

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))[: self.width]

    def reply(self, ids: list[int]) -> str:
        draw = sum(place * token for place, token in enumerate(ids, start=1)) % 1009
        draw = draw if self.chance is None else int(self.chance.integers(1009))
        if draw % 11 == 0:
            return "I do not know."
        return f"<think>Well.</think><action>{self.action(draw)}</action>"

    def action(self, draw: int) -> str:
        return MOVES[draw % len(MOVES)]


class Shopper(Model):
    def action(self, draw: int) -> str:
        return ("search[red shoes]", "click[back to search]", "click[next >]", "click[buy now]")[draw % 4]


def make_gen_batch(tokenizer: Any, rows: int) -> Any:
    """As the trainer takes it out of a batch of its dataset."""
    ids = torch.tensor([tokenizer.encode("<image>", add_special_tokens=False)] * rows)
    single = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "position_ids": torch.arange(ids.shape[1]).expand(rows, -1),
        "raw_prompt_ids": np.array([[1]] * rows + [[1, 2]], dtype=object)[:rows],
        "raw_prompt": np.array([[{"role": "user", "content": ""}], None] * rows, dtype=object)[:rows],
        "data_source": np.array([f"source {row}" for row in range(rows)], dtype=object),
    }
    batch = DataProto.from_single_dict(single)
    gen_batch = batch.pop(
        batch_keys=["input_ids", "attention_mask", "position_ids"],
        non_tensor_batch_keys=["raw_prompt_ids", "raw_prompt", "data_source"],
    )
    gen_batch.meta_info = {"do_sample": True, "eos_token_id": tokenizer.eos_token_id}
    return gen_batch


def episodes(batch: Any) -> list[Any]:
    """What happened in each episode, without the identifiers, in the order of the environments."""
    columns, found = batch.non_tensor_batch, dict[str, list[Any]]()
    for row, uid in enumerate(columns["traj_uid"]):
        mask = batch.batch["attention_mask"][row].bool()
        found.setdefault(uid, []).append(
            (
                batch.batch["input_ids"][row][mask].tolist(),
                batch.batch["responses"][row].tolist(),
                batch.batch["position_ids"][row].tolist(),
                core_gigpo.to_hashable(columns["anchor_obs"][row]),
                round(float(columns["rewards"][row]), 6),
                bool(columns["is_action_valid"][row]),
                round(float(columns["episode_rewards"][row]), 5),
                float(columns["episode_lengths"][row]),
                float(columns["tool_callings"][row]),
                columns["data_source"][row],
                round(float(columns["success_rate"][row]), 6),
            )
        )
    return [*found.values()]


def collected(name: str, **changes: Any) -> tuple[Any, Any, Any]:
    """Of one training step with our collector: the config, the tokenizer, the batch."""
    config, tokenizer = make_config(name, **changes), make_tokenizer()
    train, val = make_envs(config)
    model = (Shopper if name == "Webshop" else Model)(tokenizer, np.random.default_rng(1))
    batch = TrajectoryCollector(config, tokenizer).multi_turn_loop(
        make_gen_batch(tokenizer, config.data.train_batch_size), model, train, is_train=True
    )
    train.close()
    val.close()
    return config, tokenizer, batch


def run_collectors(name: str, *, is_train: bool, mode: str = "tiny_rgb_array") -> None:
    """The same episodes by verl-agent's collector and by ours: prompts, replies, positions, rewards, anchors."""
    found = []
    for collector_class in (TheirCollector, TrajectoryCollector):
        config, tokenizer = make_config(name, mode=mode), make_tokenizer()
        if not is_train:
            config.env.rollout.n = 1
        rows = config.data.train_batch_size if is_train else config.data.val_batch_size
        train, val = make_envs(config)
        model = (Shopper if name == "Webshop" else Model)(tokenizer)
        batch = collector_class(config, tokenizer, make_processor(tokenizer)).multi_turn_loop(
            gen_batch=make_gen_batch(tokenizer, rows),
            actor_rollout_wg=model,
            envs=train if is_train else val,
            is_train=is_train,
        )
        assert isinstance(batch, DataProto)
        found.append((batch, sum(model.asked)))
        train.close()
        val.close()
    (theirs, their_prompts), (ours, our_prompts) = found
    assert episodes(theirs) == episodes(ours), f"{name}: the episodes differ"
    missing = theirs.non_tensor_batch.keys() - ours.non_tensor_batch.keys()
    assert not missing, f"{name}: {missing} is missing in our batch"
    assert {*theirs.batch.keys()} == {*ours.batch.keys()}
    for key, tensor in theirs.batch.items():
        assert (tensor.dtype, tensor.shape[1:]) == (ours.batch[key].dtype, ours.batch[key].shape[1:]), key
    lengths = sorted(len(episode) for episode in episodes(ours))
    what = f"{name}, {'training' if is_train else 'validation'}, {mode}"
    print(f"{what}: {len(lengths)} episodes of {lengths} turns are the same")
    print(f"prompts: {their_prompts} by their collector, {our_prompts} by ours")
    if mode == "rgb_array":
        check_pictures(theirs, ours)


def check_pictures(theirs: Any, ours: Any) -> None:
    anchors = {one.shape for one in ours.non_tensor_batch["anchor_obs"]}
    assert ours.batch["position_ids"].shape[1] == theirs.batch["position_ids"].shape[1] >= 3
    rows = {uid: row for row, uid in enumerate(ours.non_tensor_batch["traj_uid"])}  # the last of each episode
    their_rows = {uid: row for row, uid in enumerate(theirs.non_tensor_batch["traj_uid"])}
    for mine, other in zip(rows.values(), their_rows.values(), strict=True):
        for key, value in theirs.non_tensor_batch["multi_modal_inputs"][other].items():
            assert torch.equal(value, ours.non_tensor_batch["multi_modal_inputs"][mine][key]), key
    print(f"anchors {anchors}; the inputs of pictures are the same")


def run_all_collectors() -> None:
    for name in ("Sokoban", "Webshop"):
        for is_train in (True, False):
            run_collectors(name, is_train=is_train)


def run_rewards_and_advantages() -> None:
    """verl-agent's reward manager, GiGPO and padding on our batch; its advantages are ours."""
    for name in ("Sokoban", "Webshop"):
        config, tokenizer, batch = collected(name)
        assert isinstance(batch, DataProto)
        scores = EpisodeRewardManager(tokenizer, num_examine=0)(batch, return_dict=True)["reward_tensor"]
        rewards = batch.non_tensor_batch["episode_rewards"].astype(np.float32)
        assert np.allclose(scores.sum(-1).numpy(), rewards)
        mask = batch.batch["attention_mask"][:, -scores.shape[1] :]
        last = mask.sum(-1) - 1
        assert torch.equal(scores[torch.arange(len(batch)), last], scores.sum(-1))
        batch.batch["response_mask"] = mask
        batch.batch["token_level_scores"] = scores
        batch.batch["step_rewards"] = core_gigpo.compute_step_discounted_returns(batch=batch, gamma=0.95)
        for penalty in (0.0, 0.1):
            charged, _ = apply_invalid_action_penalty(copy.deepcopy(batch), invalid_action_penalty_coef=penalty)
            for mode, normalize in (("mean_norm", "mean"), ("mean_std_norm", "mean_std")):
                apart = compare_advantages(charged, mode, normalize, penalty)
                print(f"{name}, {mode}, penalty {penalty}: the same; in float32 up to {apart:.1e} apart")
        padded = adjust_batch(config, batch)
        assert len(padded) % 8 == 0
        print(f"{name}: {len(batch)} rows, padded to {len(padded)}")


def compare_advantages(batch: Any, mode: str, normalize: Any, penalty: float) -> float:
    """How far verl-agent's advantages are from ours: not at all in double precision.

    verl-agent computes in float32. With "mean_std_norm" it divides what that rounds off by std + 1e-6, which is just
    1e-6 where all rewards of a group are equal.
    """
    columns, mask = batch.non_tensor_batch, batch.batch["response_mask"]
    ours = advantages.gigpo(
        group=columns["uid"],
        trajectory=columns["traj_uid"],
        reward=columns["rewards"],
        anchor=columns["anchor_obs"],
        valid=columns["is_action_valid"],
        invalid_penalty=penalty,
        gamma=0.95,
        normalize=normalize,
        stats_over="steps",
        singleton="raw",
    )

    def theirs(token_level_rewards: Any, step_rewards: Any) -> Any:
        found, _ = core_gigpo.compute_gigpo_outcome_advantage(
            token_level_rewards=token_level_rewards.clone(),
            step_rewards=step_rewards.clone(),
            response_mask=mask,
            anchor_obs=columns["anchor_obs"],
            index=columns["uid"],
            traj_index=columns["traj_uid"],
            mode=mode,
        )
        row = found[:, 0].numpy()
        assert np.allclose(found.numpy(), row[:, None] * mask.numpy())
        return row

    assert np.allclose(batch.batch["step_rewards"].numpy(), ours.step_return, atol=1e-5)
    score = exact_scores(columns, penalty)
    doubles = torch.zeros(mask.shape, dtype=torch.float64)
    doubles[:, 0] = torch.tensor(score)
    assert np.allclose(theirs(doubles, torch.tensor(ours.step_return)), ours.advantage, atol=1e-6), mode

    rounded = np.spacing(np.float32(max(np.abs(score).max(), np.abs(ours.step_return).max())))
    divisors = [1.0, 1.0]
    if normalize == "mean_std":
        divisors = [spread(score, columns["uid"]) + 1e-6, spread(ours.step_return, ours.step_group) + 1e-6]
    apart = np.abs(theirs(batch.batch["token_level_scores"], batch.batch["step_rewards"]) - ours.advantage)
    assert (apart <= sum(8 * rounded / divisor for divisor in divisors)).all(), (mode, apart.max())
    return float(apart.max())


def exact_scores(columns: Any, penalty: float) -> Any:
    """Of each row: the rewards of its episode, rounded once, and the penalty of the row."""
    earned: dict[str, list[float]] = {}
    for uid, reward in zip(columns["traj_uid"], columns["rewards"], strict=True):
        earned.setdefault(uid, []).append(float(reward))
    whole = np.array([math.fsum(earned[uid]) for uid in columns["traj_uid"]])
    return whole - penalty * ~columns["is_action_valid"].astype(bool)


def spread(values: Any, labels: Any) -> Any:
    """Of each row: the standard deviation in its group, 1 for a row that is alone."""
    found = {}
    for label in {*labels}:
        own = values[labels == label]
        found[label] = 1.0 if len(own) == 1 else own.std(ddof=1)
    return np.array([found[label] for label in labels])


def run_training_step() -> None:
    """What the trainer does with a batch: penalty, scores, GRPO's and GiGPO's advantages, mini-batches."""
    config, tokenizer, batch = collected("Sokoban")
    if "step_rewards" not in batch.batch:
        batch.batch["step_rewards"] = core_gigpo.compute_step_discounted_returns(batch=batch, gamma=0.95)
    batch = adjust_batch(config, batch)
    batch.batch["response_mask"] = ray_trainer.compute_response_mask(batch)
    batch.batch["token_level_scores"] = EpisodeRewardManager(tokenizer, num_examine=0)(batch)
    batch, metrics = apply_invalid_action_penalty(batch, invalid_action_penalty_coef=0.1)
    batch.batch["token_level_rewards"] = batch.batch["token_level_scores"]
    for estimator in (ray_trainer.AdvantageEstimator.GiGPO, ray_trainer.AdvantageEstimator.GRPO):
        done = ray_trainer.compute_advantage(copy.deepcopy(batch), adv_estimator=estimator, gamma=0.95, lam=1.0)
        assert torch.isfinite(done.batch["advantages"]).all()
    parts = done.chunk(config.trainer.n_gpus_per_node)
    keys = ["responses", "input_ids", "attention_mask", "position_ids", "advantages"]
    sizes = [len(one) for part in parts for one in part.select(batch_keys=keys).make_iterator(4, 1)]
    print(f"a training step: {len(done)} rows in {len(parts)} parts, mini-batches of {sorted({*sizes})}; {metrics}")


def run_validation() -> None:
    """The trainer's own `_validate`, with our collector and our environments."""
    for name in ("Sokoban", "Webshop"):
        config, tokenizer = make_config(name), make_tokenizer()
        config.env.rollout.n = 1
        train, val = make_envs(config)
        rows = make_gen_batch(tokenizer, config.data.val_batch_size)
        loaded = {**dict(rows.batch.items()), **rows.non_tensor_batch}
        metrics = []
        for _ in range(2):
            trainer = SimpleNamespace(
                config=config,
                tokenizer=tokenizer,
                val_dataloader=[loaded],
                traj_collector=TrajectoryCollector(config, tokenizer),
                actor_rollout_wg=(Shopper if name == "Webshop" else Model)(tokenizer),
                val_envs=val,
                val_reward_fn=EpisodeRewardManager(tokenizer, num_examine=0),
                _maybe_log_val_generations=lambda **_: None,
            )
            metrics.append(ray_trainer.RayPPOTrainer._validate(trainer))
        assert metrics[0] == metrics[1], "validation differs from time to time"
        print(f"_validate, {name}: {metrics[0]}")
        train.close()
        val.close()


PROGRAMS = {
    "collectors": run_all_collectors,
    "pictures": lambda: run_collectors("Sokoban", is_train=True, mode="rgb_array"),
    "advantages": run_rewards_and_advantages,
    "step": run_training_step,
    "validation": run_validation,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
