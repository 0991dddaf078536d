"""The life of jobs. Pure: no socket, no clock, no file. `jobs.py` is told what happened, and says what to do."""
