"""Train a network, from opening the data to the last checkpoint."""
