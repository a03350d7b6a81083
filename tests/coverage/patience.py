"""For pytest -p: workers write their counts when they end, and xdist kills none within ten minutes."""

from xdist.workermanage import NodeManager

NodeManager.EXIT_TIMEOUT = max(600, NodeManager.EXIT_TIMEOUT)  # 10: too few on a busy machine
