"""Speech-to-speech engine: a paged runtime for MOSS-Speech and its codec.

Usable alone as a library: no Qt, no audio device, no thread of its own.
`bundle.Bundle` names the weights, `engine.Engine` turns microphone PCM into reply PCM.
"""
