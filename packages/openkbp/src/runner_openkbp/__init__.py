"""Radiotherapy dose prediction (OpenKBP)."""
