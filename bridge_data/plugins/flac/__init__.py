"""Whole FLAC files decoded by libFLAC (`pip install soundfile`), faster than by FFmpeg, to the same samples."""
