"""Keys of RAGEN's and verl's configurations that make no difference to what is played, and why."""

from asyncrollout.config.document import Path

_TRAINER = "for the trainer"
_SERVER = "for the inference server"
_VALIDATION = "a run has no validation"
_ROLLOUT: Path = ("actor_rollout_ref", "rollout")

_TRAINERS_PARTS = (
    *("collapse_detection", "critic", "custom_reward_function", "data", "enable_response_mask", "global_profiler"),
    *("grpo_advantage_length_weight", "log_prob_micro_batch_size_per_gpu", "lora", "micro_batch_size_per_gpu"),
    *("ppo_mini_batch_size", "ray_init", "ray_kwargs", "reward", "reward_manager", "reward_model", "system", "trainer"),
    *("transfer_queue", "use_critic"),
)
_ALGORITHM = (
    *(
        "bi_level_gae",
        "gamma",
        "gigpo",
        "high_level_gamma",
        "kl_ctrl",
        "kl_penalty",
        "lam",
        "pf_ppo",
        "rollout_correction",
    ),
    *("rollout_is", "rollout_is_threshold", "soft_advantage_reweight", "use_kl_in_reward", "use_pf_ppo"),
    *("zero_task_advantage",),
)
_ENGINE = (
    *("agent", "calculate_log_probs", "chat_scheduler", "checkpoint_engine", "cudagraph_capture_sizes"),
    *("data_parallel_size", "disable_log_stats", "dtype", "enable_chunked_prefill", "enable_prefix_caching"),
    *("enable_rollout_routing_replay", "enforce_eager", "engine_kwargs", "expert_parallel_size", "free_cache_engine"),
    *(
        "gpu_memory_utilization",
        "ignore_eos",
        "layer_name_map",
        "layered_summon",
        "load_format",
        "log_prob_max_token_len_per_gpu",
    ),
    *(
        "log_prob_micro_batch_size",
        "log_prob_micro_batch_size_per_gpu",
        "log_prob_use_dynamic_bsz",
        "log_stats_interval",
    ),
    *("logprobs_mode", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "mode", "mtp", "multi_stage_wake_up"),
    *(
        "multi_turn",
        "n_gpus_per_node",
        "name",
        "nnodes",
        "over_sample_rate",
        "pipeline_model_parallel_size",
        "profiler",
    ),
    *("prometheus", "prompt_length", "quantization", "quantization_config_file", "scheduling_policy", "skip_dump_dir"),
    *("skip_rollout", "skip_tokenizer_init", "tensor_model_parallel_size", "tp_size_check", "trace"),
    *("update_weights_bucket_megabytes", "use_fire_sampling"),
)
_ANALYSIS = ("gradient_analysis_bucket_mode", "gradient_analysis_num_buckets", "rollout_filter_empty_stop_steps")

IRRELEVANT: dict[Path, str] = {
    **{(name,): _TRAINER for name in _TRAINERS_PARTS},
    **{("algorithm", name): _TRAINER for name in _ALGORITHM},
    **{("actor_rollout_ref", name): _TRAINER for name in ("actor", "hybrid_engine", "nccl_timeout", "ref")},
    **{(*_ROLLOUT, name): _SERVER for name in _ENGINE},
    **{(*_ROLLOUT, name): _TRAINER for name in _ANALYSIS},
    (*_ROLLOUT, "n"): "group_size says it",
    (*_ROLLOUT, "val_kwargs"): _VALIDATION,
    ("algorithm", "filter_groups", "metric"): "rewards are what is compared",
    ("agent_proxy", "batch_adjust_mode"): _TRAINER,
    ("agent_proxy", "use_turn_scores"): "batches have the reward of every turn",
    ("actor_rollout_ref", "model"): "policy names the model",
    ("model_path",): "policy names the model",
    ("ctx_manager",): "RAGEN does not read it",
    ("es_manager", "val"): _VALIDATION,
    ("seed", "val"): _VALIDATION,
    ("hydra",): "for Hydra",
    ("output",): "a run has a directory of its own",
}
"""Each path with everything below it."""

OF_TAGS = {
    "max_workers": "for RAGEN's threads: workers says how many processes there are",
    "parallel_friendly": "for RAGEN's threads",
}
"""The same for the keys of a tag in `custom_envs`."""
