"""Figures of the book: one function a figure, taking a result's data (and an axis where there is one), returning the axis."""
