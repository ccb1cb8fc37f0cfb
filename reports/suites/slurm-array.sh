#!/bin/bash
# A suite over eight tasks of a Slurm array, one GPU each:
#
#     SUITE=reports/suites/misalignment.toml OUT=$PWD/out sbatch reports/suites/slurm-array.sh
#     sizer store import out/*.jsonl.gz
#
# Every task times its own jobs of each priority and writes out/<suite>.<i>-of-8.jsonl.gz. A task that is started again
# (--requeue, or the same sbatch) takes up what it had written. The store lies on the node's own disk: SQLite does not
# work on a network file system, and the tasks share nothing.
#SBATCH --job-name=sizer
#SBATCH --array=1-8
#SBATCH --ntasks=1
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:30:00
#SBATCH --signal=TERM@60
set -euo pipefail
: "${SUITE:=reports/suites/misalignment.toml}" "${OUT:=$PWD/out}"
shard=$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT
export SIZER_STORE=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/sizer-$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID.db

before=$OUT/$(basename "$SUITE" .toml).$SLURM_ARRAY_TASK_ID-of-$SLURM_ARRAY_TASK_COUNT.jsonl.gz
[ ! -s "$before" ] || sizer store import "$before"
# --signal reaches the step a minute before the end: what was measured is written then. SIZER_ARGS: --dry-run …
# shellcheck disable=SC2086
exec srun sizer bench --suite "$SUITE" --shard "$shard" --out "$OUT" ${SIZER_ARGS:-}
