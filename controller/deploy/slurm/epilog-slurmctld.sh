#!/bin/sh
# Slurm's EpilogSlurmctld: ends what a job has left at the switches, so that its slots are free at once. In slurm.conf
#   EpilogSlurmctld=/etc/wiresum/slurm/epilog-slurmctld.sh
# and at the host of slurmctld /etc/wiresum/operator.env, with an operator's certificate that SlurmUser can read:
#   WIRESUM_SWITCH=10.0.0.1:43487
#   WIRESUM_TLS=/etc/wiresum/operator
# WIRESUM names another command than that of the package.
set -eu

settings=${1:-/etc/wiresum/operator.env}
if [ -r "$settings" ]; then
  set -a
  # shellcheck source=/dev/null
  . "$settings"
  set +a
fi
# A service that does not answer is no reason to hold up Slurm: what is left ends by itself once it is silent.
"${WIRESUM:-/opt/wiresum/bin/wiresum}" jobs end "slurm-${SLURM_JOB_ID:?}[.-]*" --reason "Slurm's job $SLURM_JOB_ID is over" ||
  echo "what job $SLURM_JOB_ID has left at the switches was not ended" >&2
