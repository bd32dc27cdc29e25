"""Compare runs of one project: their settings, their results, their speed.

runs      reads a run's folder, whether the run ended or not
tables    lists the differences as tables of text
page      shows the same with curves, as HTML
"""
