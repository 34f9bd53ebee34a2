"""Everything of TensorRT, TensorRT for RTX and TensorRT-LLM; none of it is needed to run in torch.

The engine meets it in three places only. `llm.loading` returns a `PagedLM` over an `Executor`
(lm/step.py). `codec.engines` gives loaded codec stages `Runner`s (codec/graph.py) in place of their
networks. `checkpoint.reading` gives the weights of a converted language model to torch executors. The
commands `moss-voice trt ...` convert, quantize, build and inspect with the other modules. library.py and
llm/library.py alone import the libraries, on request.
"""
