"""Runs of a cluster under faults and attacks, of any duration."""
