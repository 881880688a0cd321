#!/usr/bin/env bash
# Slurm's Prolog (slurm.conf: Prolog=/etc/tidepool/prolog.sh): a node whose memserver does not serve takes no jobs. Slurm drains a node
# whose prolog fails, and puts the job back into its queue.
set -euo pipefail
socket_dir=${TIDEPOOL_SOCKET_DIR:-/run/tidepool}
memctl -s "$socket_dir" wait-ready --timeout 30s > /dev/null
