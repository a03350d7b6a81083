"""Python imports this module when it starts; in `make coverage` it begins to count lines."""

import coverage

coverage.process_startup()
