"""The eleventh set, which was held out for one recording.

Its writer had seen neither the verdict, but for its causes' names, nor the bugs of other sets.
"""
