"""The study: runs compute notebooks, keeps their results with provenance, and draws what the book shows."""
