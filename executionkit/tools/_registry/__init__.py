"""What the registry is made of: names, forms of tools, metadata, records."""
