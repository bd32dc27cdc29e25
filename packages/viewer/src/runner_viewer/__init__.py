"""Open a run's predictions in napari: `runner PROJECT view`.

runner imports this module at every start, so it holds nothing.
"""
