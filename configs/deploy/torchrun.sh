#!/usr/bin/env bash
# One training job on NNODES machines; run this on each of them:
#   NNODES=2 MASTER=node0 CONFIG=configs/llava.yaml DATA=/data/blend.yaml RUN=/checkpoints/run1 configs/deploy/torchrun.sh
# PROGRAM is another module instead of the Megatron script; arguments are further ones of it. Started again, it resumes from the newest checkpoint.
set -euo pipefail
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-240}" # s to save after a SIGTERM (before torch 2.13: 30)
exec torchrun \
  --nnodes "${NNODES:-1}" --nproc-per-node "${GPUS:-8}" --max-restarts "${RESTARTS:-3}" \
  --rdzv-backend c10d --rdzv-endpoint "${MASTER:-localhost}:${PORT:-29500}" --rdzv-id "${JOB:-train}" \
  -m "${PROGRAM:-recipes.megatron.train_vlm}" "$CONFIG" "$RUN" --data.path="$DATA" "$@"
