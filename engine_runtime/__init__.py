"""Speech-to-speech engine: a paged runtime for MOSS-Speech and its codec.

Usable alone as a library: no Qt, no audio device, no thread of its own.
`bundle.Bundle` names the weights, `engine.Engine` turns microphone PCM into reply PCM.
"""

import os

# NOTE: OpenMP reads this once, when torch is first imported. Its threads otherwise spin while they wait for
# each other. Where a window and audio want the same two cores, that turns a decode step of 3 ms into 100 ms.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
