"""A run of `ddl` on a fleet, in virtual time: its own rules deciding, over links of given speed.

Learners step and fail as `ddl.simulate.life` has it. Around them are the real cores of coordinator and
learner, the control plane of `ddl.sim`, and transfers that take time; payloads are sizes alone.
`world` puts them together, `tally` counts what comes of it.
"""
