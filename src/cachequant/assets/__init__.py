"""Models and texts: pinned names and hashes, where they are found, and the cache folder of what was converted."""
