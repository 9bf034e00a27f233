"""The parts of `executionkit.approval`."""
