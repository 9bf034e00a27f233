"""The parts of `LocalProvider`: the model file, the engine's threads, the grammar."""

from __future__ import annotations
