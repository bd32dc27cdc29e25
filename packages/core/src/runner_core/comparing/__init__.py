"""Runs of one project side by side: what they were told, what came of it, how fast.

runs      what is read of a run's folder, whether it ended or not
tables    where the runs differ, as tables of text
page      the same with curves, as HTML
"""
