"""Reliable, composable calls to language models and to tools."""

__version__ = "1.0.0"
