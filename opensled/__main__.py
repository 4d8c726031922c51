"""`python -m opensled`: the same as the `opensled` command."""

import sys

from opensled.cli.main import main

sys.exit(main())
