"""Sound in and out: rings, resampling, WAV files, devices, streams. numpy and sounddevice only, no Qt, no
torch."""
