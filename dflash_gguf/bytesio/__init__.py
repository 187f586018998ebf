"""Where bytes come from and go.

Owns reading at offsets and atomic writing; never interprets what it moves.
Way in: source.LocalFile, source.MemorySource, atomic.AtomicFile, folder.AtomicFolder.
"""
