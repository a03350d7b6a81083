"""The fourteenth set, which was held out for one recording.

Its writer had seen neither the verdict, but for the words of its causes, nor the bugs of other sets
than the second.
"""
