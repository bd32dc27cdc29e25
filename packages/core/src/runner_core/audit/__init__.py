"""What `runner PROJECT check` finds out of data before anything is trained on them, and what a training says of new
ones at its start."""
