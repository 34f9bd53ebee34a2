"""The GPU runtime: the CUDA build of torch for the packaged program, whose own torch is for the processor.

lock.py says which wheels it consists of, wheels.py gets and unpacks them, install.py puts them into a folder
of their own, tests them in a child process (trial.py) and records that; store.py holds folders and records.
At the start of the packaged program activation.py puts the folder before the program's own libraries, if it
fits and its test was passed. No torch and no Qt here. Main thread.
"""
