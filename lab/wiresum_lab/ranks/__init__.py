"""Processes that are ranks of a job, driven in step by a benchmark or a test."""
