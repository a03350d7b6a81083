"""A figure as a page of the book shows it: as SVG, once more for phones, and with its values."""

from labkernels.plots.page.versions import MIME, versions

__all__ = ["MIME", "versions"]
