"""For pytest -p: xdist waits until its workers have written their counts, when they end."""

from xdist.workermanage import NodeManager

NodeManager.EXIT_TIMEOUT = max(600, NodeManager.EXIT_TIMEOUT)  # 10: too few on a busy machine
