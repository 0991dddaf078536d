"""The project's extensions of pytest: time-outs that depend on the slowness of the machine, reports of time-outs apart
from failures, a table of the files' seconds, and the nightly tests that a change needs. The conftest.py of the checkout
loads `suite.plugin`."""
