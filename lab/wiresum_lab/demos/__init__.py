"""Trainings for people to look at."""
