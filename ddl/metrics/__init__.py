"""Numbers for Prometheus: what they are called (families), and how they are served (serve)."""
