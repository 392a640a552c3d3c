"""One module per command; `ddl_cli.app` puts them together."""
