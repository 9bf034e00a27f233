"""The parts of `json_extraction`: strict reading, mending, searching, choosing."""
