"""What this project adds to pytest: patience by how slow the machine is, time-outs apart from failures, a table of the
files' seconds, and the proofs that a change is held by. The conftest.py of the checkout loads `suite.plugin`."""
