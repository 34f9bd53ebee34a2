"""Sound in and out: rings, resampling, sound files, devices, streams. No Qt, no torch."""
