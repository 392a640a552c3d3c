"""`ddl demo`: a whole run on this machine, with a learner killed and another one joining late."""
