"""The sixteenth set, which is held out: nobody saw the verdict's answers to it before a recording.

Its writer had seen neither the verdict, but for the words of its names and causes, nor the bugs of
other sets than the second; all bugs were written before these words were read.
"""
