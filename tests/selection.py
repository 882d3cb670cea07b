"""Which test files `make test`, `make test-fast` and `make test-all` run, and on how many event loops."""

ON_ONE_LOOP = frozenset({"test_ray_shards", "test_report_browser", "test_viewer"})
"""Files whose async tests run on uvloop alone, as those of envs (`test_env*`) do: they never see the loop."""

BOTH_LOOPS_EACH_TIME = frozenset({
    "test_blocking",
    "test_guards",
    "test_handle",
    "test_leaving",
    "test_policies_openai",
    "test_pool",
    "test_raised",
    "test_remote_pool",
    "test_rollout",
    "test_rollouts",
    "test_service",
    "test_service_http",
})  # fmt: skip
"""Files about sockets, processes and cancellation, where loops differ: they run on both in `make test`.

The pass of all other files on asyncio's own loop is `extended`.
"""

EXTENDED = frozenset({"test_env_hacking", "test_env_leaks", "test_examples_training", "test_report_browser"})
"""Files that need not run on every commit: they play or open envs for a minute, train, or need a browser."""

EXTENDED_PREFIXES = (
    "test_dropin_metarl",
    "test_dropin_ragen",
    "test_dropin_vagen",
    "test_dropin_verl",
    "test_evaluation",
)
"""Likewise by their names: the drop-ins, which nothing else depends on. Whoever changes one runs its files."""

HEAVY = frozenset({
    "test_blame",
    "test_cli",
    "test_cli_eval",
    "test_cli_new_env",
    "test_cli_runs",
    "test_comparison",
    "test_digest",
    "test_docs",
    "test_dropin_metarl",
    "test_dropin_metarl_learner",
    "test_dropin_metarl_seed",
    "test_dropin_metarl_ways",
    "test_dropin_metarl_workers",
    "test_dropin_portal",
    "test_dropin_ragen_container",
    "test_dropin_ragen_seeds",
    "test_dropin_ragen_states",
    "test_env_leaks",
    "test_env_reasoning",
    "test_env_video",
    "test_env_video_data",
    "test_env_webshop_catalogue",
    "test_env_webshop_original",
    "test_envs",
    "test_evaluation",
    "test_examples",
    "test_faults",
    "test_guards",
    "test_journal",
    "test_journal_trouble",
    "test_leaving",
    "test_policies_local",
    "test_pool_cells",
    "test_pool_episodes",
    "test_pool_life",
    "test_pool_misuse",
    "test_pool_model",
    "test_pool_recovery",
    "test_pool_restores",
    "test_pool_slow",
    "test_raised",
    "test_ranks",
    "test_remote_lost",
    "test_remote_pool",
    "test_run_secrets",
    "test_sampler_model",
    "test_service_attacks",
    "test_service_fuzz",
    "test_service_http",
    "test_sinks",
    "test_testing",
    "test_video",
    "test_video_rollouts",
    "test_viewer",
    "test_worker_start",
})  # fmt: skip
"""Files that `make test-fast` leaves out: most of their tests start processes."""
