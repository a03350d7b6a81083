"""The tenth set, which is held out: nobody saw the verdict's answers to it before a recording.

Its writer had not seen the verdict, nor the bugs of the sets after the second.
"""
