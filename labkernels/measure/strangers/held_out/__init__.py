"""The ninth set, which is held out: nobody saw the verdict's answers to it before a recording.

Its writer had not seen the verdict. The set has not changed since it was judged.
"""
