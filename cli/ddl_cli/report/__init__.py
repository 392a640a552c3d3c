"""`ddl report`: a run on one page, from its log (story), as plots (plots), in HTML (page)."""
