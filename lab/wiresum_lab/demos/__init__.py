"""Demos: trainings with a chart or a report for people."""
