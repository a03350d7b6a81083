"""`python -m labkernels` is the command `labkernels`."""

import sys

from labkernels.cli import main

# A worker process of an experiment imports this module too, under another name.
if __name__ == "__main__":
    sys.exit(main())
