"""Speed and memory, each number beside the cheapest thing that does the same work."""
