"""`python -m ddl_cli`, the same as `ddl`."""

from __future__ import annotations

from ddl_cli.app import main

main()
