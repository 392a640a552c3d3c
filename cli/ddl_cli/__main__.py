"""`python -m ddl_cli`, the same as `ddl`."""

from __future__ import annotations

from ddl_cli.entry import main

main()
