"""Figures of the book: one function a figure, from a result's data to the axis that it drew on."""
