"""The seventeenth set, which was held out for one recording.

Its writer had seen neither the verdict, but for the words of its names and causes, nor the bugs of
other sets than the first two, but by accident the names of some bugs of the sixteenth and some
words of the verdict in a test; he had read the helpers and some right kernels of the sixteenth. All
bugs were written before the words of the verdict's names were read; after that, and by mistake,
sixty lines of the sixteenth set's labels were read as well.
"""
