"""The life of jobs: who may be in one, who waits, who gets which slots, when it ends.

Pure: no socket, no clock, no file. `jobs.py` is the way in: it is told what happened, and says what is to be done
(`outputs.py`).
"""
