"""Measure where the time goes and what each remedy is worth, in trials of settings on the user's data."""
