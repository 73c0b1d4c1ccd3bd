"""Models and texts: pinned names and hashes, where they are found, and the cache folder that keeps what was converted."""
