"""Engines train a network in one framework each; imported only when a project asks for its engine."""
