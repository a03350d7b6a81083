"""The eighteenth set, held out: nobody saw the verdict's answers to it before a recording."""
