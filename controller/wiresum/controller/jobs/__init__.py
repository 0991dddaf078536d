"""The life of jobs. Pure: no socket, no clock, no file. The owner tells `jobs.py` what happened, and gets what to
do."""
