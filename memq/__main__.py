"""`python -m memq` is the `memq` command."""

from __future__ import annotations

import sys

from memq.cli.main import main

sys.exit(main())
