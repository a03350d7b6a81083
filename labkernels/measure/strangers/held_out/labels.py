import collections

PATTERNS = collections.defaultdict(lambda: r"(?!)")
_OF = {}
