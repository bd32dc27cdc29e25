"""The face for Python: `runner_core.train`, `check`, `open` and `phantom`, and the runs and predictions they return.

Every function here calls the function behind the command of the same name, with keywords in place of flags.
"""
