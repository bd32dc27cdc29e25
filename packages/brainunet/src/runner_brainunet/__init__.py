"""Brain."""
