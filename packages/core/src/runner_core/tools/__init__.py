"""Commands that look at data, or train a little to find something out."""
