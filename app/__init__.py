"""The desktop application: window, sound devices, turn-taking, command line.

The engine is `engine_runtime`; only the engine imports torch.
"""
