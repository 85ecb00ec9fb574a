"""`python -m bigbatch` is the command `bigbatch`."""

import sys

from bigbatch.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
