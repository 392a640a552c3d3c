"""The command line of `ddl`. The library does not know it."""
