"""Engines: what trains a network in one framework. Imported only when a project asks for its engine."""
