"""The ninth set, which is held out: nobody saw what the verdict says of it before a recording.

It was written by somebody who had not seen the verdict, and is not changed since it was judged.
"""
