"""The live view of a run: pages of text out of a `RunSnapshot`, and the screen that shows them.

Everything but `screen`, `keyboard` and `poller` is pure: the same snapshot, look and size give the
same lines. A page is a list of lines, none wider than asked for; without a width, as in a pipe or a
file, nothing is left out and nothing is wrapped.
"""
