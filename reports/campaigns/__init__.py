"""Campaigns: many tries to break the program, from a seed, each counted; figures in reports/robustness.md."""
