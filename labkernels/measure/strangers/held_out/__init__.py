"""The seventeenth set, which is held out: nobody saw the verdict's answers to it before a
recording.
"""
