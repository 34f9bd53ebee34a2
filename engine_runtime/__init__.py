"""Speech-to-speech engine: a paged runtime for MOSS-Speech and its codec.

Usable as a library: no Qt, no audio device, starts no threads. `bundle.Bundle` names the weights,
`engine.Engine` turns microphone PCM into reply PCM.
"""

import os

from engine_runtime.cpu_threads import set_wait_policy

# NOTE: OpenMP reads this once, when torch is first imported.
set_wait_policy()

# NOTE: disables usage statistics of onnxruntime, huggingface_hub with hf_xet, and TensorRT-LLM, which read
# these variables when they are loaded.
NO_TELEMETRY = ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "TRTLLM_NO_USAGE_STATS", "DO_NOT_TRACK")
os.environ.update(dict.fromkeys(NO_TELEMETRY, "1"))
