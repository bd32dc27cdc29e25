"""Proves that a run which was killed and resumed is the run that never was.

differences   where two runs first differ: log, checkpoints, pictures, summary; bit for bit
start         the settings under which it is proved
moments       the moments of a training at which it can be killed
killable      a training in a process of its own, which tells how far it is
campaign      the run that nobody disturbs, those that are killed, and what the comparison says
"""
