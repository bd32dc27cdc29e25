"""Output of a run: run folders, pictures, trackers, reports, the terminal."""
