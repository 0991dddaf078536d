#!/bin/sh
# Stands in for ssh when mpirun starts its daemon on a "machine" that is a network namespace:
#   mpi_launch_agent.sh MANAGEMENT_ADDRESS COMMAND...
# WIRESUM_BENCH_NAMESPACES says which namespace has which address. The daemon gets a host name of its own, because
# Open MPI takes ranks of one host name for neighbours in memory.
set -eu
address=$1
shift
for pair in $WIRESUM_BENCH_NAMESPACES; do
  if [ "${pair%%=*}" = "$address" ]; then
    exec ip netns exec "${pair#*=}" unshare --uts sh -c 'hostname "$1" && exec sh -c "$2"' sh "node-${address##*.}" "$*"
  fi
done
echo "mpi_launch_agent.sh: no namespace has the address $address" >&2
exit 1
