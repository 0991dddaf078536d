#!/bin/sh
# Slurm's TaskProlog: tells each task of a job where the switch is. In slurm.conf
#   TaskProlog=/etc/wiresum/slurm/task-prolog.sh
# and at every node /etc/wiresum/worker.env, a setting a line:
#   WIRESUM_SWITCH=10.0.0.1:43487
#   WIRESUM_TLS=/etc/wiresum/tls
# What a user has set stays as it is. Jobs get their names from SLURM_JOB_ID by themselves.
set -eu

settings=${1:-/etc/wiresum/worker.env}
[ -r "$settings" ] || exit 0
while IFS='=' read -r name value || [ -n "$name" ]; do
  case $name in
    WIRESUM_*) printenv "$name" >/dev/null || printf 'export %s=%s\n' "$name" "$value" ;;
  esac
done <"$settings"
