"""Decoupled DiLoCo: one model, many machines that come and go."""

__version__ = "0.1.0"
