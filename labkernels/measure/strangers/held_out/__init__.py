"""The kinds that are held out: nobody looked at what the verdict says of them before a recording.

They were written before the verdict was run on any of them, and are not changed since.
"""
