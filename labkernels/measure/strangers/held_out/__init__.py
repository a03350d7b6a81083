"""The eighteenth set, held out: nobody saw the verdict's answers to it before a recording.

Its writer had seen neither the verdict, but for the words of its names and causes, nor the bugs of
other sets than the first two, but by accident thirty lines of the seventeenth set's labels, and the
start of some lines of the chapter. The test of the seventeenth set, which became this set's, has
names of its bugs and words of the verdict. All bugs were written before the list of the verdict's
names was read; seven of them had the names of older bugs and were taken out.
"""
