"""The arithmetic of codecs and merge as loops that touch memory once; optional.

Plain torch does each of its operations over the whole memory again, and is the reference for all
of this: `ddl.codec` and `ddl.merge` hold it, and use it where these loops cannot be had.
"""
