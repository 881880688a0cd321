#!/usr/bin/env bash
# Slurm's Epilog (slurm.conf: Epilog=/etc/tidepool/epilog.sh): gives back what a job that Slurm has ended still holds, if its trainers were
# started with `trainer run --job "slurm-$SLURM_JOB_ID"`. A job that Slurm puts back into its queue has its name kept by another choice:
# without that name nothing is released here, and memserver's lease decides.
set -euo pipefail
socket_dir=${TIDEPOOL_SOCKET_DIR:-/run/tidepool}
code=0
text=$(memctl -s "$socket_dir" job release "slurm-${SLURM_JOB_ID:?is set by Slurm}" --force 2>&1) || code=$?
# 3: no memserver, so nothing is held; 4: there is no such job.
case $code in
  0 | 3 | 4) exit 0 ;;
  *)
    echo "$text" >&2
    exit "$code"
    ;;
esac
