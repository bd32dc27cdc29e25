"""Experiments: several trainings that answer one question together (cross-validation, repetition, sweeps).

A member of an experiment is an ordinary run, trained as `runner PROJECT train` does. This room chooses the members,
trains those that are not done, and pools their scores; `cli.experiment` gives it the function that trains.
"""
