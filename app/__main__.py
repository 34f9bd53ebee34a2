"""`python -m app` is `moss-voice`."""

from __future__ import annotations

import sys

from app.cli import main

sys.exit(main())
