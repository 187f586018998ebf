"""Where bytes come from and go.

Owns reading at offsets and atomic writing; never interprets what it moves.
Way in: files.LocalFile, files.MemoryFile, atomic.AtomicFile, folder.AtomicFolder.
"""
