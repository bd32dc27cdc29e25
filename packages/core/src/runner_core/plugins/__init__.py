"""Installed plugins, their capabilities, and the settings that apply."""
