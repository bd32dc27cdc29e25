"""Check data before anything is trained on them, and check new data at the start of a training."""
