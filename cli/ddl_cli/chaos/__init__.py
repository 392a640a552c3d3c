"""`ddl chaos`: real faults on a real run on this machine."""
