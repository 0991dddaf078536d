"""Processes that are ranks of a job, driven in step: by a benchmark, by a test."""
