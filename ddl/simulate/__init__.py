"""What a fleet of failing machines would get done, in virtual time: `ddl simulate`.

The model is that of the paper's Table 1 (arXiv 2604.21428, 3.3 and E.1). It knows chips, steps and
pauses, and no weights: `settings` says what is simulated, `fleet` works it out, `life` is one learner.
`protocol` has the same learners hand in and adopt by the rules of `ddl`.
"""
