"""The tool runtime: what a model said goes in, results come out."""
