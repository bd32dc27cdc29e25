"""Compute the first step of a PyTorch training to compare it: as it is trained, by plain kernels, or with rounding.

step      a step and the updates after it, and what they computed
plain     PyTorch's own plain kernels
rounding  each operation off at random, by as much as its dtype rounds
shadow    each operation once more in float64, and compared
"""
