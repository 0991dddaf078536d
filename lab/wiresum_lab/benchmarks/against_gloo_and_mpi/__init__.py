"""The benchmark of dense all-reduces over Wiresum, Gloo and Open MPI: `make bench NAMES=dense`."""
