"""What workflows and plans share: the graph of steps, and running it."""

from __future__ import annotations
