"""Prove that a killed and resumed run equals an uninterrupted one.

differences   finds where two runs first differ: log, checkpoints, pictures, summary; bit for bit
killable      a training in its own process, which reports its progress
campaign      the undisturbed run, the killed ones and the moments of their kills, and the comparison
"""
