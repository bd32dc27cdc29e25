"""Where the time goes, and what each remedy is worth: trials of settings, measured side by side on the user's data."""
