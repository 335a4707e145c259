"""Speeds of flowq and flowsim beside yardsticks on the same machine: ``python -m benchmarks``."""
