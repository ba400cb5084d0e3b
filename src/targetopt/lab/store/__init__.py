"""A directory of results: files written whole or not at all, where they came from, how far they are."""
