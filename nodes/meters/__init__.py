"""Meters: what processes used of CPUs and GPUs, or why it is not known."""
