"""Runs `wiresum` as `python -m wiresum.cli`, where the script is not on the path."""

from wiresum.cli.main import main

main(prog_name="python -m wiresum.cli")
