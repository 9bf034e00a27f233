"""The parts of `executionkit.tools.scheduling`: pure, without clock or event loop."""
