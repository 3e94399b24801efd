#!/usr/bin/env bash
# GRPO with verl (older ones without `reward.`), rewarded by the judge: `verl_run.sh MODEL TRAIN.parquet VALIDATION.parquet`.
# A row's `reward_model.ground_truth` is its task: source, a path, or an id of the server.
# Start `warpsmith serve --client-tasks --profile rl` first and set WARPSMITH_SERVER and WARPSMITH_TOKEN.
set -euo pipefail
python -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.model.path="$1" \
    data.train_files="$2" data.val_files="$3" \
    reward.custom_reward_function.path="$(python -m warpsmith.verl)" \
    reward.custom_reward_function.name=compute_score
